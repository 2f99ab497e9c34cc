"""Change one line of the source at a time, and see whether the tests notice: `python tools/mutants.py [NAME ...]`.

`tests/mutants.toml` has the mutants: lines that decide a result, what becomes of them, and the tests that are to fail.
Each is applied to a copy of the source. Ends with 1 if a mutant lives, or if its line is not in the source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def place(line: str, source: Path) -> tuple[Path, str]:
    """The only file with this line, or these lines, and its text."""
    found = [(path, text) for path in sorted(source.rglob("*.py")) if (text := path.read_text("utf-8")).count(line)]
    if len(found) != 1 or found[0][1].count(line) != 1:
        raise LookupError(f"must be once in the source, and is in {[path.name for path, _ in found] or 'no file'}")
    return found[0]


def verdict(mutant: dict[str, Any], root: Path) -> str:
    """Apply a mutant in a copy of the project, run its tests, and restore the source."""
    try:
        path, text = place(mutant["line"], root / "src")
    except LookupError as error:
        return f"NOT FOUND: its line {error}"
    path.write_text(text.replace(mutant["line"], mutant["becomes"]), "utf-8")
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "timeout=60"]
    command += mutant["tests"]
    began = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    finally:
        path.write_text(text, "utf-8")
    failed = [row.split(" - ")[0] for row in done.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
    seconds = time.perf_counter() - began
    if done.returncode == 1:
        return f"killed in {seconds:3.0f} s by {failed[0].partition(' ')[2] if failed else '?'}"
    return f"LIVES, {seconds:.0f} s" if done.returncode == 0 else f"NO TESTS (pytest ended with {done.returncode})"


def main(names: list[str]) -> int:
    """Print what becomes of every mutant, or of those with these names."""
    mutants: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/mutants.toml").read_text("utf-8"))
    chosen = {name: mutant for name, mutant in mutants.items() if not names or name in names}
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests", "examples", "experiments", "docs", "tools", "benchmarks"):
            if (ROOT / part).exists():
                shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt"):
            shutil.copy(ROOT / file, folder)
        for number, (name, mutant) in enumerate(chosen.items(), 1):
            found = verdict(mutant, Path(folder))
            alive += not found.startswith("killed")
            print(f"{number:3}/{len(chosen)}  {name:32} {found}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
