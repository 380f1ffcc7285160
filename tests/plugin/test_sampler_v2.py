"""Runs ``v2_cases.py`` where Model Runner V2 can run: Triton interpreted, on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CASES = (HERE / "v2_cases.py", HERE / "v2_tape_cases.py")


def test_the_v2_sampler_cases_pass_under_the_interpreter(cpu_triton: Path) -> None:
    """A process of its own: the interpreter must be chosen before Triton is imported."""
    paths = (str(cpu_triton), str(HERE.parents[1]), os.environ.get("PYTHONPATH"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, CASES)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=HERE.parents[1],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    # "25 passed in 9.1s": nothing skipped, deselected or failed.
    assert re.fullmatch(r"(\d\d) passed in .*", done.stdout.strip().splitlines()[-1])
