"""``assay report``: results as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.errors import StoreError
from assay.store.results_file import read_results


def report(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="Results of `assay verify`.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "assay report",
) -> None:
    """Write one HTML file with verdicts, distances and a heat strip of every claim.

    The file needs no network and no other file. Several results files become several executors.
    """
    from assay.report.page import render  # plotly takes a second to load

    found = [result for path in results for result in read_results(path)]
    if not found:
        raise StoreError("the results files hold no results; run `assay verify` first")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render(found, title), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error}") from error
    typer.echo(f"{len(found)} claims -> {output}")
