"""Faults put into the library on purpose: the comparison with the oracle must find each of them.

Each module of faults brings a list of cases, small enough to run under every fault and wide enough to find them all.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.parity.cases import build
from tests.parity.compare import compare
from tests.parity.faults import backends, biases, masks, operator, vectors

MODULES = {module.__name__.rpartition(".")[2]: module for module in (operator, masks, biases, vectors, backends)}
FAULTS = [(module, name) for module in MODULES for name in MODULES[module].FAULTS]


def found(module: ModuleType) -> list[str]:
    """What is wrong with the cases; an error counts as found, for a fault may also break a call."""
    wrong = []
    for choice in module.CASES:
        try:
            wrong += compare(build(choice))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            wrong.append(f"{type(error).__name__}: {error}")
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_found_where_nothing_is_wrong(module: str) -> None:
    assert found(MODULES[module]) == []


@pytest.mark.parametrize(("module", "name"), FAULTS)
def test_each_fault_is_found(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        MODULES[module].FAULTS[name](patch)
        wrong = found(MODULES[module])
    assert wrong
    print(f"{len(wrong)} differences, the first: {wrong[0]}")


@pytest.mark.parametrize("module", MODULES)
def test_the_faults_are_gone_again(module: str) -> None:
    test_nothing_is_found_where_nothing_is_wrong(module)
