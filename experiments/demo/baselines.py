"""What the decoder is held against: a character 5-gram model and xz, on the same text."""

from __future__ import annotations

import lzma
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class KneserNey:
    """Interpolated Kneser-Ney: each order takes a discount d off its counts and gives it to the order below.

        p_n(c | h) = max(count(hc) - d_n, 0) / count(h) + d_n * types(h) / count(h) * p_{n-1}(c | h')

    The top order counts occurrences, a lower one in how many contexts an n-gram occurs; below all is 1 / size.
    d_n = n1 / (n1 + 2 n2), with n1 and n2 the numbers of n-grams counted once and twice (Ney, Essen and Kneser 1994).
    """

    def __init__(self, numbers: np.ndarray, order: int, size: int) -> None:
        self.order, self.size = order, size
        self.levels = []
        grams, counts = np.unique(_codes(numbers, order, size), return_counts=True)
        for n in range(order, 0, -1):
            once, twice = (counts == 1).sum(), (counts == 2).sum()
            discount = once / (once + 2 * twice) if once else 0.5
            contexts, first = np.unique(grams // size, return_index=True)
            types = np.diff(np.append(first, len(grams)))
            self.levels.insert(0, (grams, counts, contexts, np.add.reduceat(counts, first), types, discount))
            grams, counts = np.unique(grams % size ** (n - 1), return_counts=True)

    def probabilities(self, numbers: np.ndarray, start: int) -> np.ndarray:
        """Of each character after those before it; the first ones follow copies of `start`."""
        padded = np.concatenate([np.full(self.order - 1, start), numbers])
        p = np.full(len(numbers), 1 / self.size)
        for n, (grams, counts, contexts, totals, types, discount) in enumerate(self.levels, start=1):
            wanted = _codes(padded[self.order - n :], n, self.size)
            count = _look_up(wanted, grams, counts)
            total = _look_up(wanted // self.size, contexts, totals)
            share = discount * _look_up(wanted // self.size, contexts, types)
            p = np.where(total > 0, (np.maximum(count - discount, 0) + share * p) / np.maximum(total, 1), p)
        return p

    def bits_per_character(self, numbers: np.ndarray, start: int) -> float:
        return float(-np.log2(self.probabilities(numbers, start)).mean())


def xz_bits_per_character(text: str, train: str) -> tuple[float, float]:
    """Bits a character of `text` compressed alone, and of what it adds to the compressed training text."""
    with ThreadPoolExecutor() as pool:  # the compressor lets go of Python's lock
        alone, before, both = pool.map(_xz_size, (text, train, train + text))
    return 8 * alone / len(text), 8 * (both - before) / len(text)


def _xz_size(text: str) -> int:
    # The dictionary of preset 9, 64 MiB, holds the whole training text.
    return len(lzma.compress(text.encode("ascii"), format=lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME))


def _codes(numbers: np.ndarray, n: int, size: int) -> np.ndarray:
    """Each run of n characters as one integer, the last character its lowest digit."""
    codes = np.zeros(len(numbers) - n + 1, dtype=np.int64)
    for i in range(n):
        codes = codes * size + numbers[i : len(numbers) - n + 1 + i]
    return codes


def _look_up(wanted: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is none; keys are sorted."""
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
