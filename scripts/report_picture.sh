#!/bin/sh
# Usage: scripts/report_picture.sh demo-out/report.html docs/report.png
# Draws the top of a report for the README with headless Chromium (see scripts/browser.sh).
set -eu
page=$(realpath "$1")
picture=$(realpath -m "$2")
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync \
    --disable-dev-shm-usage --hide-scrollbars --host-resolver-rules="MAP * ~NOTFOUND" \
    --user-data-dir="$profile" --virtual-time-budget=10000 \
    --window-size=1280,1000 --screenshot="$picture" "file://$page" 2>/dev/null
echo "$picture: $(stat -c %s "$picture") bytes"
