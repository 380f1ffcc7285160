"""Health check of the container: exit 0 when the node answers 200 on /livez.

    python3 livez.py [URL]

It says that the node itself works. Whether a model is served is /health, which is 503 for the
20 minutes a large model takes to start: restarting the container for that would begin them anew.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

URL = "http://127.0.0.1:8080/livez"
TIMEOUT_S = 8.0


def main(arguments: list[str]) -> int:
    url = arguments[0] if arguments else URL
    # No proxy of the environment may stand between a container and its own loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
