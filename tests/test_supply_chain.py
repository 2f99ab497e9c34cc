"""The lock file of the demo's install: exact versions, with hashes, that agree with constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pins(name: str) -> dict[str, str]:
    """The version of each package in a file."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text("utf-8"), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in found}


def test_every_package_of_the_lock_file_has_a_version_and_hashes() -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements.lock").read_text("utf-8"), flags=re.MULTILINE)
    entries = re.split(r"\n(?! )", text.strip())
    assert len(entries) == len(pins("requirements.lock")) > 20
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+( ;[^\n]*)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_lock_file_agrees_with_the_constraints_and_has_what_the_package_needs() -> None:
    locked, constrained = pins("requirements.lock"), pins("constraints.txt")
    differing = {name: (version, constrained[name]) for name, version in locked.items() if name in constrained}
    assert [name for name, (ours, theirs) in differing.items() if ours != theirs] == []  # else: make lock
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for text in (*project["project"]["dependencies"], *project["build-system"]["requires"]):
        wanted = Requirement(text)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), text
