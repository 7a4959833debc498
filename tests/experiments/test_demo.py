"""The demo: its data are split cleanly, its baseline is right, its table can fail, and it runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.demo import __main__ as demo
from experiments.demo import decoder, rows, table, text
from experiments.demo.baselines import KneserNey, xz_bits_per_character


def test_no_package_is_in_two_parts(tmp_path: Path) -> None:
    for file in ("tomllib/a.py", "tomllib/b.py", "heapq.py", "fractions.py", "os.py", "test/x.py", "json/tests/y.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text(f"# {file}: é\n", encoding="utf-8")
    corpus = text.standard_library(tmp_path)
    assert corpus.packages == {"train": ("os",), "validation": ("fractions",), "test": ("heapq", "tomllib")}
    assert corpus.test == "# heapq.py: \x1a\n# tomllib/a.py: \x1a\n# tomllib/b.py: \x1a\n"


def test_standard_library_is_split_by_package() -> None:
    corpus = text.standard_library()
    train, validation, test = (set(corpus.packages[part]) for part in ("train", "validation", "test"))
    assert (validation, test) == (text.VALIDATION, text.TEST)
    assert not train & (validation | test)
    assert len(corpus.train) > 2_000_000 > len(corpus.test) > 50_000
    assert text.decode(text.encode(corpus.test)) == corpus.test
    assert text.shared_lines(corpus.test, corpus.train) < 0.02


def test_kneser_ney_by_hand() -> None:
    # Bigrams of 0101: 01 twice, 10 once, so d_2 = 1 / (1 + 2). Each character follows one other: d_1 = 2 / (2 + 0) = 1,
    # and order 1 is uniform. p(1 | 0) = (2 - 1/3) / 2 + (1/3) (1/2) (1/2) = 11/12, p(0 | 1) = 2/3 + (1/3) (1/2) = 5/6.
    model = KneserNey(np.array([0, 1, 0, 1]), order=2, size=2)
    assert model.probabilities(np.array([0, 1, 1, 0]), start=0) == pytest.approx([1 / 12, 11 / 12, 1 / 6, 5 / 6])
    bits = -math.log2(1 / 12 * 11 / 12 * 1 / 6 * 5 / 6) / 4
    assert model.bits_per_character(np.array([0, 1, 1, 0]), start=0) == pytest.approx(bits)


def test_kneser_ney_sums_to_one() -> None:
    random = np.random.default_rng(0)
    size = 6
    model = KneserNey(random.integers(size - 1, size=400) ** 2 % size, order=5, size=size)
    for context in [*random.integers(size, size=(20, 4)), np.full(4, size - 1)]:  # the last never seen
        every = [model.probabilities(np.append(context, c), start=0)[-1] for c in range(size)]
        assert min(every) > 0
        assert sum(every) == pytest.approx(1)


def test_xz_pays_less_for_what_it_has_read() -> None:
    sample = "".join(map(chr, np.random.default_rng(0).integers(32, 127, size=3000)))
    alone, after = xz_bits_per_character(sample, "x" * 100 + sample)
    assert after < 0.2 < 6 < alone


@pytest.mark.parametrize("length", [1, 15, 16, 17, 28, 100])
def test_each_character_is_a_target_once(length: int) -> None:
    characters = torch.arange(length)
    seen = []
    for x, y in decoder.EveryCharacter(characters, context=16, batch=3):
        assert (x[:, 1:] == y[:, 1:] - 1)[y[:, 1:] > 0].all()  # the input is the character before
        seen += y[y >= 0].tolist()
    assert seen == characters.tolist()


def test_hashed_ngrams_look_back_only() -> None:
    net = decoder.HashedNGrams(buckets=64, dim=4)
    x = torch.randint(90, (1, 12))
    changed = x.clone()
    changed[0, 6] += 1
    same = (net(x) == net(changed)).all(-1)[0]
    assert same[:6].all()
    assert same[11:].all()  # five characters on, it is forgotten
    assert not same[6:11].any()


def wrong(model: str) -> table.Row:
    """A row whose peer is off by a little, in one entry."""
    row = next(row for row in rows.ROWS if row.model == model)

    def make(generator: torch.Generator):
        inputs, ours, peer = row.make(generator)

        def off(*given: torch.Tensor) -> torch.Tensor:
            out = peer(*given)
            return out + 1e-3 * torch.nn.functional.one_hot(torch.tensor(0), out.shape[-1])

        return inputs, ours, off

    return dataclasses.replace(row, make=make)


def test_a_wrong_peer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    good = next(row for row in rows.ROWS if row.model == "GPT-2")
    monkeypatch.setattr(rows, "ROWS", [good])
    arguments = ["--quick", "--parts", "[table]", "--out", str(tmp_path)]
    assert demo.main(arguments) == 0
    assert "1 of 1 rows PASS" in capsys.readouterr().out
    monkeypatch.setattr(rows, "ROWS", [good, wrong("GPT-2")])
    assert demo.main(arguments) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize(("output", "gradient"), [(math.nan, 0.0), (0.0, math.nan), (3e-5, 0.0), (0.0, 3e-5)])
def test_what_fails(output: float, gradient: float) -> None:
    verdict = table.Verdict(rows.ROWS[0], output, gradient, ours_ms=1.0, peer_ms=2.0)
    assert not verdict.passed
    assert verdict.speed == 2.0


@pytest.mark.slow
def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert demo.main(["--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{len(rows.ROWS)} of {len(rows.ROWS)} rows PASS" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["table"]) == len(rows.ROWS) >= 10
    assert set(results["text"]["test_bpc"]) == {"decoder", "5-gram", "xz alone", "xz after training text"}
    assert set(results["graph"]["accuracy"]) > {"GATv2", "label propagation", "uniform attention"}
    for name in ("text", "heads", "accuracy", "digits"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
