"""What uv.lock says, for pip and for a check that needs no network.

`constraints` prints `name==version` lines; `check` compares the lock's copy of the requirements with
pyproject.toml, and refuses anything in the lock that is not from the public index.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

_INDEX = "https://pypi.org/simple"
_FILES = "https://files.pythonhosted.org/"


def constraints(lock: dict[str, Any]) -> list[str]:
    packages = [package for package in lock["package"] if "registry" in package["source"]]
    times = Counter(package["name"] for package in packages)
    return [f"{package['name']}=={package['version']}" for package in packages if times[package["name"]] == 1]


def problems(lock: dict[str, Any], project: dict[str, Any]) -> list[str]:
    found = []
    for package in lock["package"]:
        if package["source"] not in ({"registry": _INDEX}, {"editable": "."}):
            found.append(f"{package['name']} is locked from {package['source']}")
        for file in [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]:
            if not file.get("url", "").startswith(_FILES):
                found.append(f"{package['name']} has a file from {file.get('url') or file}")
    own = next(package for package in lock["package"] if package["source"] == {"editable": "."})
    if _locked(own) != _wanted(project):
        found.append(f"requirements differ: {sorted(_locked(own) ^ _wanted(project))}; run `uv lock`")
    return found


def _locked(own: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return (name, specifier, extra that wants it) as the lock has them."""
    return {
        (entry["name"], _sorted(entry.get("specifier", "")), re.sub(r"extra == '(.*)'", r"\1", entry.get("marker", "")))
        for entry in own["metadata"]["requires-dist"]
    }


def _wanted(project: dict[str, Any]) -> set[tuple[str, str, str]]:
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {(*_split(line), extra) for extra, lines in groups.items() for line in lines}


def _split(requirement: str) -> tuple[str, str]:
    name, _, specifier = re.fullmatch(r"([A-Za-z0-9._-]+)(\[[^]]*\])?(.*)", requirement).groups()  # type: ignore[union-attr]
    return name.lower().replace("_", "-"), _sorted(specifier)


def _sorted(specifier: str) -> str:
    return ",".join(sorted(part.strip() for part in specifier.split(",")))


def main() -> int:
    lock = tomllib.loads(Path("uv.lock").read_text(encoding="utf-8"))
    if sys.argv[1:] == ["constraints"]:
        print("\n".join(constraints(lock)))
        return 0
    found = problems(lock, tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"])
    print("\n".join(found) or "uv.lock is from the public index and says what pyproject.toml says")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
