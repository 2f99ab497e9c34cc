"""Print the lines of every package beside its budget, from `[tool.tardygrad.size]` of pyproject.toml: `make size`.

Ends with 1 if a budget is exceeded, or a part of the source has none.

`--cases` also collects the tests and counts their cases, which takes half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent


class Row(NamedTuple):
    """A part of the project, its size, and the most that it may have."""

    part: str
    size: int
    budget: int

    def __str__(self) -> str:
        over = f"  {self.size - self.budget:,} too many" if self.size > self.budget else ""
        return f"{self.part:24}{self.size:8,}{self.budget:10,}{over}"


def lines(path: Path) -> int:
    """The lines of a Python file, or of all those of a folder."""
    files = path.rglob("*.py") if path.is_dir() else filter(Path.exists, [path])
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def parts(folder: Path) -> dict[str, int]:
    """The lines of every package of a folder, and of its files together, under the name of the folder."""
    sizes = {folder.name: sum(map(lines, folder.glob("*.py")))}
    for package in sorted(folder.iterdir()):
        if package.is_dir() and (size := lines(package)):
            sizes[package.name] = size
    return sizes


def read_budgets() -> dict[str, Any]:
    """The table `[tool.tardygrad.size]`."""
    tables: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    budgets: dict[str, Any] = tables["tool"]["tardygrad"]["size"]
    return budgets


def rows() -> list[Row]:
    """All parts that have a budget."""
    budgets = read_budgets()
    source = parts(ROOT / "src/tardygrad")
    found = [Row(name, size, budgets["packages"].get(name, 0)) for name, size in source.items()]
    apart = lines(ROOT / "experiments/tests")  # they count as tests
    moved = {"experiments": -apart, "tests": apart}
    for name, budget in budgets["folders"].items():
        found.append(Row(f"{name}/", lines(ROOT / name) + moved.get(name, 0), budget))
    longest = max((ROOT / "src").rglob("*.py"), key=lines)
    return [*found, Row(f"longest: {longest.name}", lines(longest), budgets["longest_file"])]


def cases() -> Row:
    """The test cases, collected."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests", "experiments", "-p", "no:cacheprovider"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return Row("cases of tests", sum("::" in line for line in printed.splitlines()), read_budgets()["cases"])


def main() -> int:
    """Print the table; the exit code says whether all is within its budget."""
    found = rows() + ([cases()] if "--cases" in sys.argv[1:] else [])
    print(f"{'':24}{'lines':>8}{'at most':>10}")
    print(*found, sep="\n")
    return any(row.size > row.budget for row in found)


if __name__ == "__main__":
    sys.exit(main())
