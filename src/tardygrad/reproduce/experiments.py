"""What the paper's accuracy tables are made of: 24 cells, and for each experiment a task, a fleet and a grid.

The paper sweeps synchronous Clip² fully (rates and thresholds); everything else takes its thresholds and sweeps the
rates. So do we, on smaller grids that are the same for every method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tardygrad import tasks
from tardygrad.core.method import Method, Mode
from tardygrad.core.task import Task
from tardygrad.errors import Invalid
from tardygrad.fleet import Stragglers
from tardygrad.methods.clip2 import clip2
from tardygrad.methods.sgdclip import sgdclip

LABELS = {
    "sgdclip": "SGDClip",
    "clip2": "Clip²",
    "sd-sgdclip": "SD-SGDClip",
    "sd-clip2": "SD-Clip²",
    "dc-clip2": "DC-Clip²",
}
MODES: dict[Mode, tuple[str, ...]] = {
    "sync": ("sgdclip", "clip2"),
    "server": tuple(LABELS),
    "client": tuple(LABELS),
}


class Cell(NamedTuple):
    """A cell of the paper's tables."""

    stragglers: Stragglers
    mode: Mode
    method: str


FLEETS: tuple[Stragglers, ...] = ("mild", "large")
CELLS = tuple(Cell(stragglers, mode, method) for stragglers in FLEETS for mode in MODES for method in MODES[mode])


class Trial(NamedTuple):
    """One run: a cell, its rates and thresholds, a seed."""

    cell: Cell
    lr: float  # η
    local_lr: float  # η_ℓ
    local_clip: float  # u
    clip: float | None  # ũ; SGDClip has none
    seed: int


@dataclass(frozen=True)
class Experiment:
    """Something to learn, on the paper's fleet of so many clients."""

    title: str
    published: str  # which of the paper's results stands beside ours
    task: Callable[..., Task]
    settings: dict[str, Any]  # of the task
    folders: dict[str, str] = field(default_factory=dict)  # settings of the task that are folders below --data
    optional: bool = False  # without them the task knows where to look
    score: str = "accuracy"
    clients: int = 40  # N
    rounds: int = 140  # T
    how: dict[str, int] = field(default_factory=lambda: {"buffer": 4, "local_steps": 5})  # M, K
    lrs: tuple[float, ...] = (0.3, 1.0, 3.0)
    local_lrs: tuple[float, ...] = (0.1, 1.0)
    cells: tuple[Cell, ...] = CELLS
    clips: tuple[tuple[float, float], ...] = ((0.003, 0.001), (0.01, 0.003), (0.03, 0.01))  # (u, ũ)

    def make(self, data: Path | None) -> Task:
        """The task, with its files from below a folder; `Invalid` says what is missing."""
        places = {key: data / name for key, name in self.folders.items() if data and (data / name).is_dir()}
        if not self.optional and len(places) < len(self.folders):
            names = " and ".join(f"{name}/" for name in self.folders.values())
            raise Invalid(f"it needs a folder with {names}, got {str(data) if data else 'none'}. Use --data FOLDER.")
        return self.task(clients=self.clients, **self.settings, **{key: str(path) for key, path in places.items()})

    def method(self, trial: Trial) -> Method:
        """The method of a trial."""
        name = trial.cell.method
        settings: dict[str, Any] = {
            "local_lr": trial.local_lr,
            "local_clip": trial.local_clip,
            "lr": trial.lr,
            "mode": trial.cell.mode,
            "downplay": name.startswith("sd-"),
            "compensate": name.startswith("dc-"),
            **self.how,
        }
        return sgdclip(**settings) if trial.clip is None else clip2(**settings, clip=trial.clip)

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Every (η, η_ℓ)."""
        return [(lr, local_lr) for lr in self.lrs for local_lr in self.local_lrs]

    def sweep(self) -> list[Trial]:
        """Synchronous Clip² with every threshold and rate; on one fleet, since who straggles changes only its clock."""
        return [trial for clips in self.clips for trial in self.grid(Cell("large", "sync", "clip2"), clips)]

    def grid(self, cell: Cell, clips: tuple[float, float]) -> list[Trial]:
        """A cell with every pair of rates, and the given thresholds."""
        u, outer = clips
        clip = outer if cell.method.endswith("clip2") else None
        return [Trial(cell, lr, local_lr, u, clip, seed=0) for lr, local_lr in self.rates]


def _glue(name: str, title: str, score: str = "accuracy") -> Experiment:
    return Experiment(
        title=f"{title}: a linear head on MiniLM's features; beside it the paper's RoBERTa on the same task",
        published=name,
        task=tasks.glue,
        settings={"name": name, "train": "head"},
        folders={"data": "glue"},
        score=score,
        clients=10,
        rounds=30,
        how={"buffer": 4, "local_epochs": 1},
        local_lrs=(0.01, 0.1),
        clips=((0.01, 0.003), (0.1, 0.003), (0.1, 0.03)),
    )


_SMALL = {"dim": 32, "batch_size": 16, "test_rows": 2000}
_SCRATCH: dict[str, Any] = {"lrs": (0.2, 0.6, 2.0), "local_lrs": (0.3, 1.0), "clips": ((0.003, 0.001), (0.01, 0.003))}
EXPERIMENTS = {
    "fashion": Experiment(
        title="Fashion-MNIST: a small vision transformer from scratch; beside it the paper's CIFAR-10",
        published="cifar10",
        task=tasks.fashion,
        settings={**_SMALL, "patch": 7},
        folders={"data": "fashion"},
        optional=True,
        **_SCRATCH,
    ),
    "cifar10": Experiment(
        title="CIFAR-10: a small vision transformer from scratch; the paper tunes a pretrained one",
        published="cifar10",
        task=tasks.cifar10,
        settings={**_SMALL, "patch": 8},
        folders={"data": "cifar10"},
        **_SCRATCH,
    ),
    "cifar10-frozen": Experiment(
        title="CIFAR-10: a linear head on TinyViT's features; the paper tunes a whole pretrained ViT",
        published="cifar10",
        task=tasks.cifar10,
        settings={"model": "tinyvit", "train": "head", "batch_size": 64, "train_rows": 5000, "test_rows": 2000},
        folders={"data": "cifar10", "pretrained": "tinyvit5m_mobilesam"},
        how={"buffer": 4, "local_epochs": 5},
    ),
    "cifar10-tuned": Experiment(
        title="CIFAR-10: TinyViT's last stage and a head; the paper tunes a whole pretrained ViT",
        published="cifar10",
        task=tasks.cifar10,
        settings={
            "model": "tinyvit",
            "train": "last-1",
            "resize": 32,
            "batch_size": 16,
            "train_rows": 5000,
            "test_rows": 1000,
        },
        folders={"data": "cifar10", "pretrained": "tinyvit5m_mobilesam"},
        how={"buffer": 4, "local_steps": 2},
        lrs=(0.3, 1.0),
        local_lrs=(0.1,),
        clips=((0.01, 0.003),),
    ),
    "glue-rte": _glue("rte", "RTE"),
    "glue-mrpc": _glue("mrpc", "MRPC"),
    "glue-sst2": _glue("sst2", "SST-2"),
    "glue-stsb": _glue("stsb", "STS-B", "pearson"),
}
