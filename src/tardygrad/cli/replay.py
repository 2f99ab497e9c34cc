"""`replay`: recompute a run from its recorded arrivals."""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress

import torch
import typer
from torch import Tensor

from tardygrad.cli import commands
from tardygrad.cli.output import show, show_json
from tardygrad.cli.run import ended_run, final_model, recorded_spec
from tardygrad.engines.scripted import ScriptedPool, asleep_at_start, check_replayable
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Diverged, RecordError
from tardygrad.runs import run as runs
from tardygrad.runs.events import read_script
from tardygrad.runs.progress import round_progress
from tardygrad.runs.record import EVENTS, Row, reading_record
from tardygrad.runs.replay import check_has_rounds, restore_noise


def replay(options: commands.Replay) -> None:
    """Recompute a recorded run and compare the final models."""
    folder = options.folder
    path, recorded = ended_run(folder, "a replay")
    model, rounds = final_model(path)
    check_has_rounds(rounds, repr(folder))
    loaded = recorded_spec(folder, recorded, [], trust=options.trust)
    check_replayable(loaded.engine.arguments.get("processes_per_worker", 1))
    with reading_record(path):
        changed = _changed(recorded)
    with torch_threads(loaded.run.threads):
        built = loaded.build()
        lines = read_script(path / EVENTS)
        wire = loaded.engine.arguments.get("wire", "float32")
        asleep, rest = asleep_at_start(lines)
        script = ScriptedPool(rest, built.task, built.method, wire=wire, asleep=asleep)
        batched = loaded.engine.arguments.get("batch", 1) > 1  # then the simulator knows which jobs were one batch
        with built.pool() if batched else nullcontext(script) as pool:
            run = runs.begin(built.method, built.task, pool, rounds=rounds, seed=loaded.run.seed, evaluate_every=0)
            with reading_record(path):
                restore_noise(run.server, path)
            with suppress(Diverged):  # as the recorded run did
                for _ in round_progress(run.go(), done=0, rounds=rounds):
                    pass
        for _ in lines:  # what came after the last round
            pass
    difference = _difference(model, run, folder)
    same = difference == 0.0
    if options.json:
        show_json({"run": folder, "rounds": rounds, "same": same, "difference": difference, "changed": changed})
    elif same:
        show(f"the same bits after {runs.plural(rounds, 'round')}")
    else:
        why = "".join(f"; {name} was {was} and is {now}" for name, (was, now) in changed.items())
        show(
            f"not the same bits after {runs.plural(rounds, 'round')}: the models differ by up to {difference:.3g}{why}"
        )
    if not same:
        raise typer.Exit(1)


def _difference(recorded: dict[str, Tensor], run: runs.Run, folder: str) -> float:
    """The largest difference between two models, zero only if they have the same bits."""
    module_buffers = run.server.module_buffers
    ours: dict[str, Tensor] = {"x": run.x} | (module_buffers._asdict() if module_buffers else {})
    if {name: tensor.shape for name, tensor in ours.items()} != {name: t.shape for name, t in recorded.items()}:
        raise RecordError(f"the model in {folder!r} is not the one of its spec: the record is damaged.")
    pairs = [(tensor, recorded[name]) for name, tensor in ours.items()]
    if all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs):
        return 0.0
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()) or math.ulp(0.0)


def _changed(recorded: Row) -> dict[str, list[str]]:
    """Versions that changed since the recording: name, then old and new."""
    now = runs.versions()
    return {name: [was, now.get(name, "none")] for name, was in recorded["versions"].items() if now.get(name) != was}
