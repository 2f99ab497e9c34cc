"""`tail`: estimate how heavy-tailed the gradient noise of a spec or a run is."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from tardygrad.cli import commands
from tardygrad.cli.output import counted, show, show_json, show_table, waiting, writable
from tardygrad.cli.run import final_vectors
from tardygrad.cli.session import build
from tardygrad.core.schedules import lift
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid
from tardygrad.spec import spec
from tardygrad.tail.estimate import Tail
from tardygrad.tail.probe import CLIPPED, Layer, Probe, gradients, sampling, summarise

MAX_BATCHES = 1_000_000  # most mini-batches


def tail(options: commands.Tail) -> None:
    """Sample gradients, estimate their tails, and print a table."""
    source, figure = options.source, options.figure
    picture = None if figure is None else writable("--figure", figure, ".png", ".svg")
    loaded = spec.load(source, options.overrides, trust=options.trust)
    finished = (Path(source) / "model.safetensors").exists()
    where = options.at or ("model" if finished else "init")
    if where == "model" and not finished:
        raise Invalid(f"--at model needs a finished run, got {source!r}. Use --at init.")
    seed = loaded.run.seed if options.seed is None else options.seed
    if seed < 0:
        raise Invalid(f"--seed must be a whole number, 0 or more, got {seed}.")
    if (batches := options.clients * options.batches) > MAX_BATCHES:
        raise Invalid(f"--clients times --batches must be {MAX_BATCHES:,} or less, got {batches:,}.")
    with torch_threads(loaded.run.threads):
        task, round = build(loaded).task, 0
        x, module_buffers = task.init(loaded.run.seed), task.init_module_buffers()
        if where == "model":
            x, module_buffers, round = final_vectors(Path(source), task)
        chosen = sampling(task, x, clients=options.clients, batches=options.batches, seed=seed)
        rows = gradients(task, x, chosen, module_buffers)
        seen = list(counted(rows, total=len(chosen.clients) * options.batches, what="mini-batches"))
    with waiting("estimating tails"):
        found = summarise(chosen, seen, _threshold(loaded, round))
    if picture:
        from tardygrad.cli.tail_figure import drawn
        from tardygrad.results.theme import write

        write(drawn(found), picture)
    if options.json:
        show_json({"source": source, "at": where, "round": round, "seed": seed, "figure": figure, **asdict(found)})
        return
    norm = _clips_norm(loaded)
    _show_layers(found, norm)
    show(_advice(found, round, norm))
    if picture:
        show(f"figure  {picture}")


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


def _show_layers(found: Probe, norm: bool) -> None:
    layers = (found.whole, *found.layers)
    columns = ["layer", "index>", "by>", "block sum>", "scaled>", "verdict"]
    clips = {}
    if found.clip is not None and math.isfinite(found.clip):
        clips[f"above {found.clip:.3g}>"] = [f"{layer.above:.2%}" for layer in layers]
    if not norm:
        clips[f"clips {CLIPPED:.0%}>"] = [f"{layer.suggested:.3g}" for layer in layers]
    cells = zip(layers, *clips.values(), strict=True)
    show_table([*columns, *clips], ([*_cells(layer), *shares] for layer, *shares in cells))


def _cells(layer: Layer) -> list[str]:
    if layer.tail is None:
        return [layer.name, "", "", "", "", "no noise"]
    tail = layer.tail
    return [
        layer.name,
        _banded(tail),
        tail.by or "",
        _shown(tail.block_sum),
        _brief(layer.scaled),
        tail.verdict,
    ]


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
