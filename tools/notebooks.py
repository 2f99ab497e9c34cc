"""Run the notebooks in a real kernel and store what they show: `make notebooks`. With --check, compare instead.

What cells print and show is stored, without progress bars. Words must be the same; numbers may differ by a fifth, for
rounding differs between machines, and short noisy runs with few seeds magnify that.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def executed(notebook: Any) -> Any:
    """The notebook with the outputs of a new kernel, without what changes from run to run."""
    with TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress bars
            for output in cell.outputs:
                output.pop("transient", None)
    return notebook


def shown(notebook: Any) -> list[str]:
    """What every output of a notebook shows."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("text") or str(sorted(output["data"].items())) for output in outputs]


def differences(stored: list[str], new: list[str]) -> list[str]:
    """The outputs with other words, or with numbers that differ by more than a fifth and by more than 0.1."""
    if len(stored) != len(new):
        return [f"{len(new)} outputs, stored are {len(stored)}"]
    return [f"{one}\nstored is\n{other}" for other, one in zip(stored, new, strict=True) if not agree(one, other)]


def agree(one: str, other: str) -> bool:
    values = [[float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (one, other)]
    same_words = NUMBER.sub("#", one) == NUMBER.sub("#", other)
    return same_words and all(abs(a - b) <= max(0.1, 0.2 * max(abs(a), abs(b))) for a, b in zip(*values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is stored, and write nothing")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted((ROOT / "notebooks").glob("*.ipynb")))
    given = parser.parse_args()
    for path in given.notebooks:
        notebook = nbformat.read(path, as_version=4)
        stored = shown(notebook)
        notebook = executed(notebook)
        if not given.check:
            notebook.metadata = {"language_info": {"name": "python"}}
            nbformat.write(notebook, path)
        elif found := differences(stored, shown(notebook)):
            sys.exit(f"{path.name} shows other outputs than it stores. Run `make notebooks`.\n" + "\n".join(found))


if __name__ == "__main__":
    main()
