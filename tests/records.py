"""Records for tests that edit them."""

from __future__ import annotations

import json
from pathlib import Path

from tardygrad.runs.record import FORMAT, write_json


def without_checks(folder: Path | str) -> Path:
    """Remove the checksums of a record; then a test may edit its files."""
    folder = Path(folder)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows if row.pop("check", True))
    (folder / "events.jsonl").write_text(text)
    for name in ("spec.json", "summary.json", "sweep.json"):
        if (folder / name).exists():
            value = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({k: v for k, v in value.items() if k not in ("check", "checks")}))
    return folder


def empty_record(folder: Path) -> Path:
    """A folder with the settings of a run, in which a test may write lines without checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", {"format": FORMAT, "id": "made up"})
    return folder
