"""Runs with something planted in them, through the public names; small and quick."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import tardygrad as tg
from tardygrad.fleet import Runtime

EVEN = tg.LogNormal(1.0, 0.1)


def fleet(clients: int = 12, *, slow: float | None = None, runtime: Runtime = EVEN) -> tg.Fleet:
    """Clients around one second; the last is another, if `slow` says how many seconds it takes."""
    if slow is None:
        return tg.Fleet((tg.Group("rack", clients, runtime),))
    return tg.Fleet((tg.Group("rack", clients - 1, runtime), tg.Group("far", 1, tg.LogNormal(slow, 0.1))))


def clip2(**changes: Any) -> tg.Method:
    """Clip² that does well on twelve like clients."""
    how: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": tg.Power(1.0, -0.5), "clip": 0.1, "buffer": 6}
    return tg.clip2(**how | {"local_steps": 2, "mode": "client"} | changes)


def sgdclip(**changes: Any) -> tg.Method:
    """The same without the server's clip."""
    how: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "buffer": 6, "local_steps": 2}
    return tg.sgdclip(**how | {"mode": "client"} | changes)


def own_sgdclip(strength: float = 1.0) -> tg.Method:
    """A function as users write them, with a key of its own for the clip."""
    return sgdclip(local_clip=strength)


def record(path: Path, method: tg.Method, fleet: tg.Fleet, *, rounds: int = 100, **task: Any) -> Path:
    """Run a method on a quadratic, to whatever end, and keep the record."""
    learnt = tg.tasks.quadratic(clients=fleet.clients, dimension=10, **task)
    with suppress(tg.Diverged, tg.Starved):
        tg.simulate(method, learnt, fleet, rounds=rounds, out=path, evaluate_every=0, checkpoint_every=10_000)
    return path
