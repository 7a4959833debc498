"""What the README holds between two markers."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def made_part(name: str) -> str:
    """The table between ``<!-- name -->`` and ``<!-- /name -->``, which must be there once."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    text = README.read_text()
    assert text.count(start) == text.count(end) == 1, f"README.md must hold the table between {start} and {end}"
    return text.partition(start)[2].partition(end)[0].strip()
