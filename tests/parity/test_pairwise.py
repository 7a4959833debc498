from tests.parity import cases
from tests.parity.pairwise import pairs, pick


def test_each_possible_pair_occurs_and_no_other() -> None:
    wanted = set(pairs(cases.AXES, cases.possible))
    found = {
        pair for case in pick(cases.AXES, cases.possible) for pair in pairs({k: [v] for k, v in case.items()}, any_pair)
    }
    assert found == wanted


def any_pair(*_: object) -> bool:
    return True


def test_small_by_hand() -> None:
    axes = {"a": [0, 1], "b": [0, 1], "c": [0, 1]}
    assert len(pick(axes, any_pair)) == 4  # the least there can be: an orthogonal array
    forbidden = pick(axes, lambda one, x, other, y: not (one == "a" and other == "b" and x == y == 1))
    assert not any(case["a"] == case["b"] == 1 for case in forbidden)


def test_the_same_each_time() -> None:
    assert pick(cases.AXES, cases.possible) == pick(cases.AXES, cases.possible)
