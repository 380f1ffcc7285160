"""What commands print: results on stdout, everything about the run on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def stdout() -> Console:
    """A console on the standard output of this call, no colours when it is no terminal."""
    return _console(sys.stdout)


def stderr() -> Console:
    """A console on standard error."""
    return _console(sys.stderr)


PIPED_WIDTH = 140
"""Columns of a table that goes into a file or a pipe."""


def _console(file: TextIO) -> Console:
    piped = not file.isatty()
    return Console(
        file=file, highlight=False, soft_wrap=piped, width=PIPED_WIDTH if piped else None
    )


def print_json(value: Any) -> None:
    """One JSON document on standard output; NaN and infinities are no JSON and raise."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def progress(title: str, total: int) -> Iterator[Progress]:
    """A progress bar on standard error; it draws nothing where that is no terminal."""
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tally]}"),
        console=stderr(),
        disable=not sys.stderr.isatty(),
    )
    bar.add_task(title, total=total, tally="")
    with bar:
        yield bar
