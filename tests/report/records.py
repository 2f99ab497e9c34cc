"""Records made up for tests: any number of rounds, any text, anything missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from altair.utils.schemapi import validate_jsonschema
from altair.vegalite.v6.schema import core

from tardygrad.report.page import figures
from tardygrad.results.blocks import Section
from tardygrad.runs.record import FORMAT

EVIL = "</script><script>alert(1)</script><!-- \"'>&\u2028 javascript:alert(1) {signal}"
"""What no page may take for anything but text."""

ODD = "a.b['c'].d\\"
"""What would end a string in an expression."""

CLASSES = [["small", 3], ["large", 1]]


def record(path: Path, *, rounds: int = 12, seed: int = 0, torn: bool = False, **asked: Any) -> Path:
    """A record of four clients, of which the last is slow, one is lost for a while and one update is refused.

    Args:
        torn: leave it without a summary and with half a line, as of a run that was killed.
        asked: what spec.json says, besides; None leaves a key out.
    """
    path.mkdir(parents=True)
    known: dict[str, Any] = {
        "format": FORMAT,
        "id": "made up",
        "spec": {"task": {"kind": "quadratic"}, "method": {"kind": "clip2", "lr": 1.0}, "run": {"seed": seed}},
        "method": "Clip² (client-centric, M=2, K=5)",
        "label": "Clip²",
        "parameters": 10,
        "classes": CLASSES,
        "clock": "simulated",
        "run": {"rounds": 12, "seed": seed},
        "versions": {"tardygrad": "0.1.0"},
        **asked,
    }
    write(path / "spec.json", {key: value for key, value in known.items() if value is not None or key == "spec"})
    rows = events(rounds, seed)
    with (path / "events.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.write('{"event":"adv' if torn else "")
    if not torn:
        ended = {"status": "finished", "reason": None, "rounds": rounds, "seconds": 1.5}
        write(path / "summary.json", ended)
    return path


SCHEMA = cache(core.load_schema)


def check_charts(sections: Iterable[Section]) -> None:
    """Validate a chart of each title: Altair does not while a report is built."""
    for chart in {figure.title: figure.chart for figure in figures(sections)}.values():
        validate_jsonschema(chart | {"datasets": {}}, core.Root._schema, SCHEMA())


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps({"id": "made up", **value} if path.name == "summary.json" else value))


def events(rounds: int, seed: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def note(event: str, time: float, **facts: Any) -> None:
        rows.append({"event": event, "time": time, **facts})

    for client in range(4):
        note("dispatch", 0.0, client=client, serial=0, round=0)
    for t in range(1, rounds + 1):
        time = float(t)
        for client in (0, 1):
            note("arrival", time, client=client, serial=t - 1, round=t - 1, delay=1, steps=5, loss=1.0 / t)
        slow = t % 5 == 0
        clients, delays = ([0, 3], [1, 5]) if slow else ([0, 1], [1, 1])
        facts = {"norm": 1.0, "move": 0.1, "clipped": 0.5 / t, "local_clipped": 0.1, "steps": 10, "snapshots": t % 3}
        weights, norms = [1 / delay for delay in delays], [1.0 + (7 * t % 13) / 5, 2.0 + (5 * t % 11) / 3]
        many = {"clients": clients, "delays": delays, "weights": weights, "norms": norms}
        note("advance", time, round=t, **many, **facts, loss=(1 + 0.1 * seed) / t, seconds=0.1 * t)
        if t == 3:
            note("loss", time, client=2, round=t)
            note("refusal", time, client=3, serial=0, round=0, reason="too stale")
            note("dispatch", time, client=3, serial=1, round=t)
        if t == 6:
            note("join", time, client=2, round=t)
        for client in (0, 1):
            note("dispatch", time, client=client, serial=t, round=t)
        if t % 3 == 0:
            score = 1 - (1 + 0.1 * seed) / (t + 1)
            note("evaluation", time, round=t, loss=(1 + 0.1 * seed) / t, accuracy=score, seconds=0.01)
    return rows
