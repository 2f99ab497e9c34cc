"""What a run's record says besides its settings, and what the model card says of its training, as Markdown."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from tardygrad.core.algorithm import downplay
from tardygrad.core.method import Method
from tardygrad.runs.accountant import guarantee
from tardygrad.runs.record import Row
from tardygrad.runs.record_values import printable
from tardygrad.runs.summary import Summary, plural


def label(method: Method) -> str:
    """The name of a method in tables and figures.

    >>> from tardygrad.methods.clip2 import clip2
    >>> label(clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.1, buffer=4, local_steps=5, downplay=True))
    'SD-Clip²'
    """
    compensated = method.compensate and not method.curvature  # otherwise the name says so already
    prefixes = {"sync-": method.mode == "sync", "SD-": method.weight is downplay, "DC-": compensated}
    return "".join(prefix for prefix, holds in prefixes.items() if holds) + method.name


def versions() -> dict[str, str]:
    """The versions of packages, and the number of torch threads, that a run's bits may depend on."""
    return {
        "tardygrad": version("tardygrad"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
    }


def training_facts(recorded: Row, summary: Summary) -> str:
    """The method, the fleet, delays and scores of a run.

    Args:
        recorded: the content of its spec.json.
        summary: its results.
    """
    spec = recorded.get("spec") or {}
    versions = recorded.get("versions") or {}
    clients = ", ".join(f"{number} {name}" for name, number in recorded.get("classes") or [])
    scores = {"loss": summary.loss, "accuracy": summary.accuracy, **summary.scores}
    refused = sum(summary.refused.values())
    arrived = f"{plural(summary.updates, 'update')}, {plural(summary.local_steps, 'local step')}"
    rows = {
        "method": summary.method,
        "its settings": _settings(spec.get("method")),
        "task": _settings(spec.get("task")),
        "clients": clients,
        "fleet": _settings(spec.get("fleet")),
        "engine": _settings(spec.get("engine")),
        "rounds": f"{summary.rounds} ({summary.status}), {summary.time:g} s on the clock; {arrived}",
        "delay of updates": f"mean {summary.delay_mean:.1f}, largest {summary.delay_max} rounds",
        "lost and refused": f"{summary.lost} lost, {refused} refused",
        "privacy of each client": guarantee(summary.epsilon, summary.delta) if summary.delta else "",
        "seed": (recorded.get("run") or {}).get("seed"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if name != "threads"),
    }
    found = [(f"test {name}", f"{value:.4g}") for name, value in scores.items() if value is not None]
    when = "" if summary.score_round is None else f" after round {summary.score_round}"
    return f"## Training\n\nTrained with tardygrad.\n\n{_table(rows.items())}" + (
        f"\n## Scores{when}\n\n{_table(found)}" if found else ""
    )


def _settings(table: Any) -> str:
    """The settings of a table of a spec, without those that are not set."""
    if not isinstance(table, Mapping):
        return ""
    return ", ".join(f"{key} = {_value(value)}" for key, value in table.items() if value not in (None, [], {}))


def _value(value: Any) -> str:
    """A value at any depth; of a path, only the name, because a card is public.

    >>> _value({"data": ["/home/me/a.txt", "b/c.txt"], "lr": 0.1})
    "{'data': ['a.txt', 'c.txt'], 'lr': 0.1}"
    """
    return str(_without_folders(value))


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_without_folders(key): _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1] if isinstance(value, str) else value


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    """A table; empty rows are left out."""
    cells = [(_cell(name), _cell(value)) for name, value in rows if value not in (None, "")]
    return "".join(f"| {name} | {value} |\n" for name, value in [("", ""), ("---", "---"), *cells])


def _cell(value: Any) -> str:
    """Text that Markdown shows as it is.

    >>> print(_cell("a|b <script> *c*"))
    a\\|b \\<script\\> \\*c\\*
    """
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in printable(value, 2000))
