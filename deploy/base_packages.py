"""What a base image holds, so that installing assay can be shown to have changed none of it.

    python3 base_packages.py snapshot > base.json
    python3 base_packages.py constraints > constraints.txt    # for pip install --constraint
    python3 base_packages.py compare base.json                # exit 1 with the list of changes

Constraints keep pip from choosing another version of anything the base holds; they are no proof,
hence the comparison. It looks at the copy Python would import: version, folder, and the digest of
the list of installed files, so another build of the same version and a copy put in front of the
old one are changes too. Packages that are new are named and allowed. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib import metadata
from pathlib import Path

OWN = "vllm-assay"
"""Left out: an image built on an older image of ours may bring another version of it."""
FILE_LISTS = ("RECORD", "installed-files.txt")
VERSION = re.compile(
    r"v?(\d+!)?\d+(\.\d+)*"
    r"([-_.]?(alpha|beta|preview|pre|a|b|c|rc)[-_.]?\d*)?"
    r"(-\d+|[-_.]?(post|rev|r)[-_.]?\d*)?"
    r"([-_.]?dev[-_.]?\d*)?"
    r"(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
"""Versions pip can read (PEP 440). Distributions of Debian and Ubuntu may have others, such as
0.1.43ubuntu1, and one of these would make pip refuse the whole constraints file."""

Snapshot = dict[str, dict[str, str]]


def snapshot() -> Snapshot:
    """Every distribution by its normalised name: ``version``, ``folder``, ``files`` (a digest)."""
    found: Snapshot = {}
    for one in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        # The first one on sys.path is the one that is imported; later ones are hidden by it.
        if name and name != OWN and name not in found:
            listing = next((text for f in FILE_LISTS if (text := one.read_text(f))), "")
            found[name] = {
                "version": one.version,
                "folder": str(one.locate_file("")),
                "files": hashlib.sha256(listing.encode()).hexdigest(),
            }
    return dict(sorted(found.items()))


def constraints(packages: Snapshot) -> list[str]:
    """``name==version`` for each whose version pip can read."""
    return [
        f"{name}=={package['version']}"
        for name, package in packages.items()
        if VERSION.fullmatch(package["version"])
    ]


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """One line for each package of ``before`` that is gone or not the same in ``after``."""
    lines = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            lines.append(f"{name} {old['version']} was removed")
        elif new["version"] != old["version"]:
            lines.append(f"{name} {old['version']} became {new['version']}")
        elif new != old:
            lines.append(f"{name} {old['version']} was installed anew, in {new['folder']}")
    return lines


def compare(file: Path) -> int:
    """Print what was added; 1 with a line a package on standard error when one was changed."""
    before: Snapshot = json.loads(file.read_text(encoding="utf-8"))
    after = snapshot()
    changed = changes(before, after)
    for line in changed:
        print(f"changed a package of the base image: {line}", file=sys.stderr)
    added = [f"{name} {new['version']}" for name, new in after.items() if name not in before]
    print(f"packages of the base image: {len(before)}, changed: {len(changed)}")
    print(f"added beside {OWN}: {', '.join(added) or 'none'}")
    return 1 if changed else 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["snapshot"]:
            print(json.dumps(snapshot(), indent=1))
        case ["constraints"]:
            print("\n".join(constraints(snapshot())))
        case ["compare", file]:
            return compare(Path(file))
        case _:
            print("usage: base_packages.py snapshot | constraints | compare FILE", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
