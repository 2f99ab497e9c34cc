"""Write the tables that are made from signatures and docstrings: `make tables`."""

from __future__ import annotations

import json
from pathlib import Path

from tardygrad.spec import spec

ROOT = Path(__file__).parent.parent


def keys() -> str:
    """The keys of each table of a spec, for commands that must not import the library."""
    return json.dumps(spec.keys(), indent=1) + "\n"


def files() -> dict[Path, str]:
    """What every generated file should contain."""
    return {ROOT / "src/tardygrad_command/keys.json": keys()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
