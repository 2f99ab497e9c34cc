"""How to recompute a run from its order of arrivals."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tardygrad.constructors import checked
from tardygrad.core.hierarchy import ServerLike
from tardygrad.engines.scripted import ScriptedPool, check_replayable
from tardygrad.errors import Diverged, Invalid
from tardygrad.runs import checkpoint
from tardygrad.runs.run import Run, begin


@checked
def replay(run: Run) -> Run:
    """Recompute a run from its order of arrivals: gives the same bits, whatever engine it ran on."""
    if not isinstance(run, Run):
        fix = "Pass the run that `resume` returns; for a record made from a spec there is also `tardygrad replay`."
        raise Invalid(f"`replay` needs a Run, got {run!r}. {fix}")
    server, made_by = run.server, run.pool
    check_has_rounds(server.round, repr(run))
    check_replayable(made_by.processes, made_by.no_replay)
    pool = ScriptedPool(run.script, run.task, server.method, wire=made_by.wire)
    every = run.settings["evaluate_every"]
    again = begin(server.method, run.task, pool, rounds=server.round, seed=server.seed, evaluate_every=every)
    for level, same in zip(again.server.levels, server.levels, strict=True):
        level.privacy.key = same.privacy.key
    with suppress(Diverged):  # as the run did
        for _ in again.go():
            pass
    return again


def check_has_rounds(rounds: int, name: str) -> None:
    """Raise `Invalid` if a run made no round, so that there is nothing to repeat."""
    if rounds < 1:
        raise Invalid(f"a replay needs a run with at least one round, got {name} with none.")


def restore_noise(server: ServerLike, folder: Path) -> None:
    """Give a new server the keys of a recorded run's noise, if it is private."""
    if server.method.privacy is None or server.method.privacy.noise_seed is not None:
        return
    saved = checkpoint.read(folder / "checkpoints", folder)
    if saved is None:
        rule = "a replay of a private run needs a checkpoint, which has the key of its noise"
        raise Invalid(f"{rule}, got none in {str(folder)!r}. Restore one from a copy.")
    state = saved.part("server")
    for level, own in zip(server.levels, checkpoint.levels_of(state, server), strict=True):
        level.privacy.key = own["privacy"]["key"] if own["privacy"] else level.privacy.key
