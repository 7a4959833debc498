"""The command line of a job: options from its arguments, YAML in and out, defaults by data set."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import jsonargparse

from experiments.training.config import RunConfig, SettingError


def start(
    job: Callable[..., Any],
    argv: list[str] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Calls a job with what the command line says.

    Options are the job's arguments by name, those of dataclasses as `--training.lr`; those of its `run` stand at the
    top: `--seeds`, `--out`, `--resume`. `--config FILE` reads them from YAML, as `--print_config` writes it.

    Args:
        job: Takes `run: RunConfig`, and what else it likes, all by keyword.
        argv: The command line; default the program's own.
        presets: For some values of the job's `dataset` other defaults, by option.

    Returns:
        What the job returns.
    """
    parser = parser_of(job)
    if presets:
        asked = parser.parse_args(without_exits(argv))  # whichever way the data set is given, in a file too
        parser.set_defaults(dict(presets.get(asked.dataset, {})))
    given = parser.parse_args(argv)
    try:
        options = vars(parser.instantiate(given))
        run = RunConfig(**{field.name: options.pop(field.name) for field in fields(RunConfig)})
    except ValueError as error:
        parser.error(str(error))
    options.pop("config")
    try:
        return job(run=run, **options)
    except (SettingError, FileNotFoundError) as error:  # a data set that is missing says what to fetch
        parser.error(str(error))


class Formatter(argparse.RawDescriptionHelpFormatter, jsonargparse.DefaultHelpFormatter):
    """Leaves the lines of the description as they are."""


def parser_of(job: Callable[..., Any]) -> jsonargparse.ArgumentParser:
    module = inspect.getmodule(job)
    name = getattr(getattr(module, "__spec__", None), "name", job.__module__)
    program = f"python -m {name}"
    parser = jsonargparse.ArgumentParser(
        prog=program, usage=f"{program} [options]", description=inspect.getdoc(module), formatter_class=Formatter
    )
    parser.add_argument("--config", action="config", help="File of options, as --print_config writes it.")
    parser.add_class_arguments(RunConfig)
    parser.add_function_arguments(job, skip={"run"})
    return parser


def without_exits(argv: list[str] | None) -> list[str]:
    """The same without the options that print something and leave."""
    given = sys.argv[1:] if argv is None else argv
    return [word for word in given if word not in ("-h", "--help") and not word.startswith("--print_config")]
