"""A text that every machine has: the source of Python's standard library, split by package."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SUBSTITUTE = "\x1a"  # ASCII's own character for what could not be represented
ALPHABET = SUBSTITUTE + "\t\n" + "".join(map(chr, range(32, 127)))

# Present in every Python from 3.11 on, and none is a variant of a module that is trained on (as _pyio is of io).
TEST = {"dataclasses", "heapq", "statistics", "tomllib"}
VALIDATION = {"configparser", "fractions"}

# Not the library's own source, tests, or tables and texts in the guise of source. idlelib, lib2to3 and distutils are
# not on every machine.
LEFT_OUT = {
    *("site-packages", "dist-packages", "lib-dynload", "ensurepip"),
    *("test", "tests", "idle_test", "__phello__", "__hello__"),
    *("encodings", "pydoc_data", "_sysconfigdata"),
    *("idlelib", "lib2to3", "distutils", "turtledemo"),
}


@dataclass(frozen=True)
class Corpus:
    """Three texts, and the packages of which each is made. No package is in two of them."""

    train: str
    validation: str
    test: str
    packages: dict[str, tuple[str, ...]]


def standard_library(folder: Path | None = None) -> Corpus:
    """Reads all source files, in the order of their paths."""
    folder = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    parts: dict[str, dict[str, str]] = {"train": {}, "validation": {}, "test": {}}
    for path in sorted(folder.rglob("*.py")):
        names = path.relative_to(folder).with_suffix("").parts
        # _sysconfigdata__linux_... holds the paths of the machine that built Python.
        if LEFT_OUT.intersection(name.split("__linux")[0].split("__darwin")[0] for name in names):
            continue
        package = names[0]
        part = "test" if package in TEST else "validation" if package in VALIDATION else "train"
        text = path.read_text(encoding="utf-8", errors="replace")
        parts[part][package] = parts[part].get(package, "") + text.translate(_Ascii())
    texts = {part: "".join(packages.values()) for part, packages in parts.items()}
    return Corpus(**texts, packages={part: tuple(packages) for part, packages in parts.items()})


def encode(text: str) -> np.ndarray:
    """Numbers of the characters in ALPHABET, int64."""
    table = np.zeros(128, dtype=np.int64)
    table[np.frombuffer(ALPHABET.encode(), dtype=np.uint8)] = np.arange(len(ALPHABET))
    return table[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


def decode(numbers: np.ndarray) -> str:
    return "".join(ALPHABET[n] for n in numbers)


def shared_lines(test: str, train: str, length: int = 30) -> float:
    """Share of the test text's lines of some length that are also lines of the training text: copies would show."""
    known = {line.strip() for line in train.splitlines()}
    lines = [line.strip() for line in test.splitlines() if len(line.strip()) >= length]
    return sum(line in known for line in lines) / max(len(lines), 1)


class _Ascii(dict[int, str]):
    """For str.translate: characters beyond the alphabet become SUBSTITUTE, so that one character is one byte."""

    def __missing__(self, code: int) -> str:
        return chr(code) if chr(code) in ALPHABET else SUBSTITUTE
