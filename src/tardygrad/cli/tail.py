"""`tail`: estimate how heavy-tailed the gradient noise of a spec or a run is."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tardygrad.cli.output import counted, show, show_json, show_table, waiting, writable
from tardygrad.cli.session import torch_threads
from tardygrad.core.messages import ModuleBuffers
from tardygrad.core.schedules import lift
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs.record import read_json, reading_record
from tardygrad.spec import spec
from tardygrad.tail.estimate import Tail
from tardygrad.tail.probe import CLIPPED, Layer, Probe, gradients, sampling, summarise

if TYPE_CHECKING:
    from rich.table import Table

    from tardygrad.core.messages import Vector


MOST = 1_000_000  # most mini-batches


def tail(
    source: str,
    overrides: list[str] | None,
    at: Literal["model", "init"] | None,
    clients: int,
    batches: int,
    seed: int | None,
    figure: str | None,
    json: bool,
) -> None:
    """Sample gradients, estimate their tails, and print a table."""
    picture = None if figure is None else writable("--figure", figure, ".png", ".svg")
    loaded = spec.load(source, overrides or ())
    where = at or ("model" if (Path(source) / "model.safetensors").exists() else "init")
    if where == "model" and not (Path(source) / "model.safetensors").exists():
        raise Invalid(f"--at model needs a finished run, got {source!r}. Use --at init.")
    if seed is not None and seed < 0:
        raise Invalid(f"--seed must be a whole number, 0 or more, got {seed}.")
    if clients * batches > MOST:
        raise Invalid(f"--clients times --batches must be {MOST:,} or less, got {clients * batches:,}.")
    with torch_threads(loaded.run.threads):
        with waiting(f"preparing {loaded.task.kind}; the first time may take minutes"):
            built = loaded.build()
            task, round = built.task, 0
            x, module_buffers = task.init(loaded.run.seed), task.init_module_buffers()
            if where == "model":
                x, module_buffers, round = _model(Path(source), x, module_buffers)
            own = loaded.run.seed if seed is None else seed
            chosen = sampling(task, x, clients=clients, batches=batches, seed=own)
        rows = gradients(task, x, chosen, module_buffers)
        seen = list(counted(rows, total=len(chosen.clients) * batches, what="mini-batches"))
    with waiting("estimating tails"):
        found = summarise(chosen, seen, _threshold(loaded, round))
    if picture:
        from tardygrad.cli.tail_figure import drawn
        from tardygrad.report.theme import write

        write(drawn(found), picture)
    if json:
        show_json({"source": source, "at": where, "round": round, "seed": own, "figure": figure, **asdict(found)})
        return
    norm = _clips_norm(loaded)
    show_table(_table(found, norm))
    show(_advice(found, round, norm))
    if picture:
        show(f"figure  {picture}")


def _model(folder: Path, x: Vector, module_buffers: ModuleBuffers | None) -> tuple[Vector, ModuleBuffers | None, int]:
    """The final model of a run, and its round."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RecordError(f"{str(path)!r} cannot be read: {error}.") from error
    with reading_record(folder):
        round = int(read_json(folder / "summary.json")["rounds"])
    wanted = {"x": x} | (module_buffers._asdict() if module_buffers else {})
    if {n: (t.shape, t.dtype) for n, t in tensors.items()} != {n: (t.shape, t.dtype) for n, t in wanted.items()}:
        raise Invalid(f"the model in {str(folder)!r} must have the shape of the task's model. Do not change [task].")
    own = {name: tensor.to(x.device) for name, tensor in tensors.items()}
    return own["x"], ModuleBuffers(own["floats"], own["ints"]) if module_buffers else None, round


def _threshold(loaded: spec.Spec, round: int) -> float | None:
    """The threshold u of this round, if the method clips coordinates."""
    local_clip = loaded.method.arguments.get("local_clip")
    if local_clip is None or _clips_norm(loaded):
        return None
    return lift("local_clip", local_clip, finite=False)(max(round, 1))


def _clips_norm(loaded: spec.Spec) -> bool:
    """Whether the method clips the norm of the whole gradient."""
    arguments = loaded.method.arguments
    return arguments.get("norm") == "l2" or arguments.get("inner") == "l2clip"


def _table(found: Probe, norm: bool) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for name in ("index", "by", "block sum", "scaled"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    clip = None if found.clip is None or math.isinf(found.clip) else f"above {found.clip:.3g}"
    for name in filter(None, (clip, "" if norm else f"clips {CLIPPED:.0%}")):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in (found.whole, *found.layers):
        above = [f"{layer.above:.2%}"] if clip else []
        table.add_row(escape(layer.name), *_cells(layer), *above, *([] if norm else [f"{layer.suggested:.3g}"]))
    return table


def _cells(layer: Layer) -> list[str]:
    if layer.tail is None:
        return ["", "", "", "", "no noise"]
    tail, scaled = layer.tail, _brief(layer.scaled)
    return [_banded(tail), tail.by or "", _shown(tail.block_sum), scaled, tail.verdict]


def _brief(tail: Tail | None) -> str:
    heavy = tail is not None and tail.verdict.startswith("heavy")
    return _shown(tail.index) if tail and heavy else "light" if tail and tail.verdict == "light-tailed" else "?"


def _banded(tail: Tail) -> str:
    if tail.index is None or tail.high is None or tail.index >= 100:
        return _shown(tail.index)
    return f"{tail.index:.2f} ± {tail.high - tail.index:.2f}"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else "> 100"


def _advice(found: Probe, round: int, norm: bool) -> str:
    """What was sampled, and the threshold it suggests."""
    sampled = f"{found.batches} mini-batches of each of {len(found.clients)} clients, at x_{round}"
    if norm:
        return f"{sampled}\nto clip {CLIPPED:.0%} of all gradients by their norm: local_clip={found.length:.3g}"
    clip = f"to clip {CLIPPED:.0%} of all coordinates: local_clip={found.whole.suggested:.3g}"
    return f"{sampled}\n{clip}"
