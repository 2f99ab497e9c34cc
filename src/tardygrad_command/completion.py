"""What the shell completes, found without importing the library: shipped specs, and the keys of overrides."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path


def shipped_specs() -> dict[str, str]:
    """The specs that come with tardygrad and their descriptions, the first line of each."""
    found = find_spec("tardygrad")  # finds the package without importing it
    folders = found.submodule_search_locations if found else None
    files = sorted(Path((folders or ["."])[0], "specs").glob("*.toml"))
    return {file.stem: file.read_text("utf-8").partition("\n")[0].removeprefix("#").strip() for file in files}


def spec_keys() -> dict[str, list[str]]:
    """The keys of every table of a spec."""
    found: dict[str, list[str]] = json.loads(Path(__file__).with_name("spec_keys.json").read_text("utf-8"))
    return found  # written by `make tables`


def complete_spec(incomplete: str) -> list[str]:
    """The shipped specs that begin so; if there are none, the shell completes files."""
    return [name for name in shipped_specs() if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    """The overrides that begin so."""
    keys = [f"{table}.{key}=" for table, known in spec_keys().items() for key in ("kind", *known)]
    return [key for key in dict.fromkeys(keys) if key.startswith(incomplete) and key != "run.kind="]
