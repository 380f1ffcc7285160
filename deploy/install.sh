#!/bin/sh
# Installs the wheel of assay into a base image without changing a package of the base.
#   sh install.sh vllm_assay-0.1.0-py3-none-any.whl [EXTRA]
# PYTHON: the interpreter that has the base's vLLM (python3). Fails when that vLLM is outside the
# supported range, when pip cannot keep to the base's versions, or when a package of the base is
# another one afterwards.
set -eu
if [ "$#" -ne 1 ] && [ "$#" -ne 2 ]; then
    echo "usage: install.sh WHEEL [EXTRA]" >&2
    exit 2
fi
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" "$here/base_engine.py" "$1"
"$python" "$here/base_packages.py" snapshot >"$work/base.json"
"$python" "$here/base_packages.py" constraints >"$work/constraints.txt"
# Ubuntu and Debian mark their Python as managed by apt, which pip respects unless told otherwise.
# Nothing of theirs can change here: that is what the two lines above and the last one are for.
PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore "$python" -m pip install \
    --no-cache-dir --no-input --constraint "$work/constraints.txt" "$1${2:+[$2]}" || {
    echo "pip could not install assay beside the base's packages. Where it names a conflict," >&2
    echo "assay needs a newer version than the base holds: give a newer base image." >&2
    exit 1
}
"$python" "$here/base_packages.py" compare "$work/base.json"
