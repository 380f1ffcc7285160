"""``python -m assay.poc.detection FOLDER``: how well profiles convict cheats and spare honest nodes.

Reads the labelled sets of FOLDER (labels.csv) and prints docs/poc-detection.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from assay.errors import AssayError
from assay.poc.detection_table import report
from assay.poc.evaluation import DRAWS, Evaluation, Unit
from assay.poc.table import read_labelled_sets

OTHER_DOF = (4.0, 20.0)
"""Weights of the pooled spread that the page tries beside the one in use."""


def evaluate(folder: Path, draws: int = DRAWS) -> tuple[list[Unit], dict[float, list[Unit]]]:
    """Every unit of the evaluation; and the honest and cheating ones for each of OTHER_DOF.

    Raises ClaimError when the folder cannot be read.
    """
    work = Evaluation(read_labelled_sets(folder), draws)
    others = {dof: list(work.unseen_with(dof)) for dof in OTHER_DOF}
    return [*work.unseen(), *work.seen()], others


def main(arguments: list[str] | None = None) -> int:
    """Print the page. 0, or 1 when the folder cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m assay.poc.detection", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with labels.csv")
    parser.add_argument("--draws", type=int, default=DRAWS, help="subsets of nonces a pair")
    given = parser.parse_args(arguments)
    try:
        print(report(*evaluate(given.folder, given.draws)), end="")
    except AssayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
