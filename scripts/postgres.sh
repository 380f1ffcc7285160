#!/bin/sh
# Installs Debian's PostgreSQL for the tests of the outbox behind a URL. Does nothing where its
# programs are there already; without apt-get (or the right to use it) it says so and succeeds:
# those tests then skip. The tests start a server of their own, on loopback, as another user.
set -u
if command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "postgres.sh: no apt-get here; tests that need PostgreSQL will skip" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null; then
    exit 0
fi
echo "postgres.sh: installing PostgreSQL failed; tests that need it will skip" >&2
exit 0
