"""The README's table of support is what the back ends say."""

from __future__ import annotations

from pathlib import Path

from tests.parity.support import table

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- support -->", "<!-- /support -->"


def test_the_readme_says_what_the_back_ends_say() -> None:
    text = README.read_text()
    assert text.count(START) == text.count(END) == 1, f"README.md must hold the table between {START} and {END}"
    found = text.partition(START)[2].partition(END)[0].strip()
    assert found == table(), "README.md differs: put in what `python -m tests.parity.support` prints"
