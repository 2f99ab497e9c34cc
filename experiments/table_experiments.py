"""The experiments behind the accuracy tables: 24 cells, and for each experiment a task, a fleet and a grid.

The paper sweeps synchronous Clip² fully (rates and thresholds); all other methods take its thresholds and sweep the
rates. So do we, on smaller grids that are the same for every method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.paper import LABELS
from experiments.tasks import runnable
from experiments.trials import FLEETS, KINDS
from tardygrad.core.method import Mode
from tardygrad.errors import Invalid
from tardygrad.fleet import Stragglers
from tardygrad.sweeps.store import PlannedRun

MODES: dict[Mode, tuple[str, ...]] = {
    "sync": ("sgdclip", "clip2"),
    "server": tuple(LABELS),
    "client": tuple(LABELS),
}


class TableCell(NamedTuple):
    """A cell of the paper's tables."""

    stragglers: Stragglers
    mode: Mode
    method: str


CELLS = tuple(TableCell(stragglers, mode, method) for stragglers in FLEETS for mode in MODES for method in MODES[mode])


class TableRun(NamedTuple):
    """One run: a cell, its rates and thresholds, a seed."""

    cell: TableCell
    lr: float  # η
    local_lr: float  # η_ℓ
    local_clip: float  # u
    clip: float | None  # ũ; SGDClip has none
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A task on the paper's fleet."""

    title: str
    published: str  # which of the paper's results to compare with
    task: str  # its kind
    settings: dict[str, Any]  # of the task
    folders: dict[str, str] = field(default_factory=dict)  # settings of the task that are folders below --data
    optional: bool = False  # the task finds its files without them
    score: str = "accuracy"
    clients: int = 40  # N
    rounds: int = 140  # T
    method_settings: dict[str, int] = field(default_factory=lambda: {"buffer": 4, "local_steps": 5})  # M, K
    lrs: tuple[float, ...] = (0.3, 1.0, 3.0)
    local_lrs: tuple[float, ...] = (0.1, 1.0)
    cells: tuple[TableCell, ...] = CELLS
    clips: tuple[tuple[float, float], ...] = ((0.003, 0.001), (0.01, 0.003), (0.03, 0.01))  # (u, ũ)

    def data_folders(self, data: Path | None) -> dict[str, str]:
        """The folders of the task's files below `data`; `Invalid` names those that are missing."""
        found = {key: data / name for key, name in self.folders.items() if data and (data / name).is_dir()}
        if not self.optional and len(found) < len(self.folders):
            names = " and ".join(f"{name}/" for name in self.folders.values())
            raise Invalid(f"it needs a folder with {names}, got {str(data) if data else 'none'}. Use --data FOLDER.")
        return {key: str(path.resolve()) for key, path in found.items()}

    def run(self, trial: TableRun, folders: dict[str, str], workers: int = 1) -> PlannedRun:
        """The run of a trial."""
        cell, lr, local_lr, local_clip, clip, _ = trial
        method = {**KINDS[LABELS[cell.method]], "mode": cell.mode, **self.method_settings}
        method |= {"lr": lr, "local_lr": local_lr, "local_clip": local_clip} | ({} if clip is None else {"clip": clip})
        tables = {
            "task": runnable({"kind": self.task, "clients": self.clients, **self.settings, **folders}),
            "fleet": {"kind": "paper", "stragglers": cell.stragglers},
            "method": method,
            "engine": {"kind": "sim", "workers": workers},
            "run": {"rounds": self.rounds, "evaluate_every": max(self.rounds // 7, 1), "seed": trial.seed},
        }
        return PlannedRun("-".join(cell), tables, self.score)

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Every (η, η_ℓ)."""
        return list(product(self.lrs, self.local_lrs))

    def sweep(self) -> list[TableRun]:
        """Synchronous Clip² with all thresholds and rates; on one fleet, since stragglers change only its clock."""
        return [trial for clips in self.clips for trial in self.grid(TableCell("large", "sync", "clip2"), clips)]

    def grid(self, cell: TableCell, clips: tuple[float, float]) -> list[TableRun]:
        """A cell with every pair of rates and the given thresholds."""
        u, outer = clips
        clip = outer if cell.method.endswith("clip2") else None
        return [TableRun(cell, lr, local_lr, u, clip, seed=0) for lr, local_lr in self.rates]


def _glue(name: str, title: str, score: str = "accuracy") -> Experiment:
    return Experiment(
        title=f"{title}: a linear head on MiniLM's features; beside it the paper's RoBERTa on the same task",
        published=name,
        task="glue",
        settings={"name": name, "train": "head"},
        folders={"data": "glue"},
        score=score,
        clients=10,
        rounds=30,
        method_settings={"buffer": 4, "local_epochs": 1},
        local_lrs=(0.01, 0.1),
        clips=((0.01, 0.003), (0.1, 0.003), (0.1, 0.03)),
    )


_SMALL = {"dim": 32, "batch_size": 16, "test_rows": 2000}
_SCRATCH: dict[str, Any] = {"lrs": (0.2, 0.6, 2.0), "local_lrs": (0.3, 1.0), "clips": ((0.003, 0.001), (0.01, 0.003))}
EXPERIMENTS = {
    "fashion": Experiment(
        title="Fashion-MNIST: a small vision transformer from scratch; beside it the paper's CIFAR-10",
        published="cifar10",
        task="fashion",
        settings={**_SMALL, "patch": 7},
        folders={"data": "fashion"},
        optional=True,
        **_SCRATCH,
    ),
    "cifar10": Experiment(
        title="CIFAR-10: a small vision transformer from scratch; the paper tunes a pretrained one",
        published="cifar10",
        task="cifar10",
        settings={**_SMALL, "patch": 8},
        folders={"data": "cifar10"},
        **_SCRATCH,
    ),
    "cifar10-frozen": Experiment(
        title="CIFAR-10: a linear head on TinyViT's features; the paper tunes a whole pretrained ViT",
        published="cifar10",
        task="cifar10",
        settings={"model": "tinyvit", "train": "head", "batch_size": 64, "train_rows": 5000, "test_rows": 2000},
        folders={"data": "cifar10", "pretrained": "tinyvit5m_mobilesam"},
        method_settings={"buffer": 4, "local_epochs": 5},
    ),
    "cifar10-tuned": Experiment(
        title="CIFAR-10: TinyViT's last stage and a head; the paper tunes a whole pretrained ViT",
        published="cifar10",
        task="cifar10",
        settings={
            "model": "tinyvit",
            "train": "last-1",
            "resize": 32,
            "batch_size": 16,
            "train_rows": 5000,
            "test_rows": 1000,
        },
        folders={"data": "cifar10", "pretrained": "tinyvit5m_mobilesam"},
        method_settings={"buffer": 4, "local_steps": 2},
        lrs=(0.3, 1.0),
        local_lrs=(0.1,),
        clips=((0.01, 0.003),),
    ),
    "glue-rte": _glue("rte", "RTE"),
    "glue-mrpc": _glue("mrpc", "MRPC"),
    "glue-sst2": _glue("sst2", "SST-2"),
    "glue-stsb": _glue("stsb", "STS-B", "pearson"),
}
