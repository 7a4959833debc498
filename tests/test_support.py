"""The README's table of support is what the back ends say."""

from __future__ import annotations

from tests.parity.support import table
from tests.readme import made_part


def test_the_readme_says_what_the_back_ends_say() -> None:
    found = made_part("support")
    assert found == table(), "README.md differs: put in what `python -m tests.parity.support` prints"
