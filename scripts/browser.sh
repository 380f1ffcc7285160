#!/bin/sh
# Installs Debian's Chromium for the tests that open a report. Does nothing where one is there;
# without apt-get (or the right to use it) it says so and succeeds: those tests then skip.
set -u
if command -v chromium >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "browser.sh: no apt-get here; tests that need Chromium will skip" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if apt-get update -qq && apt-get install -y -qq --no-install-recommends \
    chromium fonts-dejavu-core fonts-noto-core fonts-noto-cjk >/dev/null; then
    exit 0
fi
echo "browser.sh: installing Chromium failed; tests that need it will skip" >&2
exit 0
