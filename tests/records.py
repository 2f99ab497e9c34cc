"""Records for tests that edit them."""

from __future__ import annotations

import json
from pathlib import Path


def without_checks(folder: Path | str) -> Path:
    """Remove the checksums of a record, as if an older version had written it; then a test may edit its files."""
    folder = Path(folder)
    for name in ("events.jsonl", "metrics.jsonl"):
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows if row.pop("check", True))
        (folder / name).write_text(text)
    for name in ("spec.json", "summary.json", "sweep.json"):
        if (folder / name).exists():
            value = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({k: v for k, v in value.items() if k not in ("check", "checks")}))
    return folder
