#!/bin/sh
# Installs buildah and debootstrap, with which the tests of the container recipe build its image
# without a daemon. Does nothing where both are there already; without apt-get (or the right to use
# it) it says so and succeeds: those tests then skip.
set -u
if command -v buildah >/dev/null 2>&1 && command -v debootstrap >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "container.sh: no apt-get here; tests that build the image will skip" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if apt-get update -qq &&
    apt-get install -y -qq --no-install-recommends buildah debootstrap >/dev/null; then
    exit 0
fi
echo "container.sh: installing buildah failed; tests that build the image will skip" >&2
exit 0
