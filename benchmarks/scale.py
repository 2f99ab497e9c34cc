"""What does the design need for a thousand workers and a billion parameters? Every figure of docs/scale.md.

What a server does with an update, and what an arrival costs the driver, were measured on one machine by
`benchmarks/ray_throughput.py`, at the largest size it had (narrow numbers at the size it had them at); here they are
taken as proportional to the number of parameters. The network is not measured: it is what --link and --card say. How
often updates come, how late they are and how many models are in use at once comes from the simulator's clock alone.

A server's seconds for an update are the longer of the time to check and add it and the time on its network card; S
shards, each on its own machine, take 1/S of that. It keeps up while it is busy at most --load of the time.

    python benchmarks/scale.py [--clients 1000] [--parameters 1e9] [--unit 60] [--link 1.25] [--card 12.5] [--load 0.7]
        [--results docs/benchmarks/ray_throughput.json] [--page docs/scale.md]

With --page, the blocks of that page with these titles are written anew.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from rich.console import Console
from rich.table import Table

import tardygrad as tg
from tardygrad.core.messages import NOTHING, Advanced
from tardygrad.engines.wire import BLOCK, Wire, send
from tardygrad.fleet import Link, Uniform
from tardygrad.runs.memory import Meter, size

RESULTS = Path(__file__).parents[1] / "docs/benchmarks/ray_throughput.json"
SLOW = 0.125  # GB/s, for the table of links
JOBS = 40  # of each client, on the clock


class Load(NamedTuple):
    """An update on its way to a server."""

    name: str
    wire: str
    curvature: bool
    up: float  # bytes
    server: float  # seconds to check and add it, on one machine
    measured: int  # at so many parameters


@dataclass(frozen=True)
class Scene:
    """What is asked about."""

    clients: int
    parameters: int
    unit: float  # seconds for each of the paper's fleet
    link: float  # bytes per second of a worker
    card: float  # and of a server's machine
    load: float
    figures: dict[str, Any]

    def loads(self) -> list[Load]:
        """Whatever was measured with one shard, at the largest size each."""
        found = {}
        for row in sorted(self.figures["rows"], key=lambda row: row["parameters"]):
            if row["shards"] == 1:
                found[row["wire"], row["curvature"]] = row
        made = []
        for wire in get_args(Wire):
            for curvature in (False, True):
                if row := found.get((wire, curvature)):
                    up = self.parameters * each(wire) * (1 + curvature)
                    server = row["server"] * self.parameters / row["parameters"]
                    name = f"{'δ, A' if curvature else 'δ'} as {wire}"
                    made.append(Load(name, wire, curvature, up, server, row["parameters"]))
        return made

    def seconds(self, load: Load, shards: int) -> float:
        """Of the server for an update."""
        return max(load.server, load.up / self.card) / shards


class Clocked(NamedTuple):
    """The second half of a run on the clock."""

    updates: float  # per second
    delay: float  # mean, in rounds
    starts: int  # models that jobs under way started from, at most


def each(wire: Wire) -> float:
    """Bytes of a coordinate."""
    return send(torch.zeros(BLOCK), None, wire)[0].nbytes / BLOCK


def fleet(scene: Scene, load: Load, server_time: float) -> tg.Fleet:
    """The paper's large stragglers, each second of theirs lasting a unit, behind links."""
    paper = tg.Fleet.paper(clients=scene.clients, stragglers="large")
    wide = 4 * scene.parameters * (1 + load.curvature)  # what the simulator sends
    link = Link(down=scene.link, up=scene.link * wide / load.up)
    groups = tuple(
        replace(one, runtime=Uniform(one.runtime.low * scene.unit, one.runtime.high * scene.unit), link=link)  # type: ignore[union-attr]
        for one in paper.groups
    )
    return tg.Fleet(groups, server_time=server_time)


def clocked(scene: Scene, load: Load, shards: float, **how: Any) -> Clocked:
    """The method on the clock; with infinitely many shards, a server that takes no time."""
    how.setdefault("buffer", max(scene.clients // 10, 1))
    how.setdefault("mode", "client")
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, local_steps=1, compensate=load.curvature, **how)
    task = tg.tasks.clock(clients=scene.clients, parameters=scene.parameters)
    server_time = 0.0 if math.isinf(shards) else scene.seconds(load, int(shards))
    pool = tg.SimPool(task, method, fleet(scene, load, server_time))
    server = tg.Server(method, NOTHING, clients=scene.clients, seed=0)
    rounds = max(JOBS * scene.clients // method.buffer, 2)
    since, delays, starts = 0.0, list[int](), 0
    for event in tg.drive(server, pool, rounds):
        if not isinstance(event.happened, Advanced):
            continue
        if server.round == rounds // 2:
            since = event.time
        elif server.round > rounds // 2:
            delays += event.happened.delays
            starts = max(starts, len(set(server.roster.jobs.values())))
    return Clocked(len(delays) / (pool.now - since), sum(delays) / len(delays), starts)


def table(*headings: str) -> Table:
    made = Table(headings[0], box=None, pad_edge=False)
    for heading in headings[1:]:
        made.add_column(heading, justify="right")
    return made


def bytes_and_links(scene: Scene) -> Table:
    """What travels, and how long it takes a worker."""
    fast, slow = f"{scene.link / 1e9:g} GB/s", f"{SLOW:g} GB/s"
    made = table("numbers", "bytes each", "job down", "δ up", "δ and A up", f"δ up at {fast}", f"at {slow}")
    down = 4 * scene.parameters
    for wire in get_args(Wire):
        up = each(wire) * scene.parameters
        ways = [f"{up / rate:.1f} s" for rate in (scene.link, SLOW * 1e9)]
        made.add_row(wire, f"{each(wire):.3f}", size(down), size(round(up)), size(round(2 * up)), *ways)
    return made


def servers(scene: Scene, loads: list[Load], offered: dict[str, Clocked]) -> Table:
    """What the updates of the whole fleet ask of a server, and how many shards that takes."""
    card = f"card at {scene.card / 1e9:g} GB/s"
    made = table(
        "update", "measured at", "check and add", card, "arrivals/s", "GB/s in", "busy, 1 shard", "shards by memory",
        "by card", "shards",
    )  # fmt: skip
    for load in loads:
        rate, way = offered[load.name].updates, load.up / scene.card
        made.add_row(
            load.name, f"{load.measured:,}", f"{load.server:.2f} s", f"{way:.2f} s", f"{rate:.2f}",
            f"{rate * load.up / 1e9:.1f}", f"{rate * scene.seconds(load, 1):.0%}",
            *(str(math.ceil(rate * seconds / scene.load)) for seconds in (load.server, way)),
            str(enough(scene, load, rate)),
        )  # fmt: skip
    return made


def enough(scene: Scene, load: Load, rate: float) -> int:
    """Shards that keep up with so many updates per second."""
    return math.ceil(rate * scene.seconds(load, 1) / scene.load)


def clocks(scene: Scene, loads: list[Load], offered: dict[str, Clocked]) -> Table:
    """The same fleet on the clock, with a server that takes its time."""
    made = table("update", "shards", "s each", "updates/s", "of what is offered", "mean delay")
    for load in [one for one in loads if one.wire in ("float32", "int8")]:
        most = enough(scene, load, offered[load.name].updates)
        for shards in sorted({1, max(most // 2, 1), most}):
            found = clocked(scene, load, shards)
            share = found.updates / offered[load.name].updates
            seconds = f"{scene.seconds(load, shards):.3f}"
            made.add_row(load.name, str(shards), seconds, f"{found.updates:.2f}", f"{share:.0%}", f"{found.delay:.1f}")
    return made


def models(scene: Scene, load: Load, shards: int) -> Table:
    """Start vectors in use: in the store, and under DC once more as past models."""
    made = table(
        "setting", "updates/s", "mean delay", "models in use", "in the store", "past models (DC)", "each, a shard"
    )
    vector, n = 4 * scene.parameters, scene.clients
    settings: dict[str, dict[str, Any]] = {
        f"client-centric, M = {m}": {"buffer": m} for m in (n // 100, n // 10, n // 2) if m >= 1
    }
    settings |= {
        f"client-centric, M = {n // 10}, {n // 5} at work": {"concurrency": n // 5, "dispatch": "random"},
        f"server-centric, M = {n // 10}": {"mode": "server"},
    }
    for name, how in settings.items():
        found = clocked(scene, load, math.inf, **how)
        held = found.starts * vector
        made.add_row(
            name, f"{found.updates:.2f}", f"{found.delay:.1f}", str(found.starts), size(held), size(held),
            size(held // shards),
        )  # fmt: skip
    return made


def memory(scene: Scene, shards: int) -> Table:
    """What a process holds besides the models in use."""
    made = table("process", "δ", "δ and A")
    task, n = tg.tasks.clock(clients=scene.clients, parameters=scene.parameters), max(scene.clients // 10, 1)
    found = []
    for curvature in (False, True):
        method = tg.sgdclip(
            local_lr=0.1, local_clip=1.0, lr=1.0, buffer=n, local_steps=1, mode="client", compensate=curvature
        )
        found.append(Meter(method, task))
    made.add_row("worker: its job's model, in the store", *(size(one.model) for one in found))
    made.add_row("worker: its work", *(size(one.work) for one in found))
    made.add_row("worker: its update, in the store", *(size(one.update) for one in found))
    made.add_row("server: x and the sum", *(size(one.own) for one in found))
    made.add_row("server: while a round is made, at most", *(size(one.step) for one in found))
    whole = (one.own + one.step + one.update for one in found)
    made.add_row(f"each of {shards} shards: all that, and an update", *(size(one // shards) for one in whole))
    return made


def driver(scene: Scene, rate: float, shards: int) -> Table:
    """What all arrivals, checkpoints and evaluations ask of the one process that has no shards."""
    made = table("the driver", "each", "of its time")
    waits = {int(count): seconds for count, seconds in scene.figures["wait"].items()}
    for count, seconds in waits.items():
        made.add_row(f"ray.wait over {count:,} jobs", f"{1000 * seconds:.2f} ms", f"{rate * seconds:.2%}")
    tiny = {row["shards"]: row["cpu"] for row in scene.figures["tiny"]}
    for number, cpu in tiny.items():
        name = "here" if number == 1 else f"in {number} shards"
        made.add_row(f"CPU of an arrival, vectors {name}", f"{1000 * cpu:.2f} ms", f"{rate * cpu:.2%}")
    if len(tiny) > 1:
        one, *_, most = sorted(tiny)
        cpu = tiny[one] + (tiny[most] - tiny[one]) * shards / most  # one call to check and one to add for every shard
        made.add_row(f"the same, {shards} shards (extrapolated)", f"{1000 * cpu:.2f} ms", f"{rate * cpu:.2%}")
    vector = 4 * scene.parameters
    for what, vectors in {"an evaluation (x in, x out)": 2, "a checkpoint (x and the sum in)": 2}.items():
        made.add_row(f"{what}: {size(vectors * vector)}", f"{vectors * vector / scene.card:.2f} s", "")
    return made


def sections(scene: Scene) -> dict[str, Table]:
    """All tables, by their titles."""
    loads = scene.loads()
    offered = {load.name: clocked(scene, load, math.inf) for load in loads}
    last = next((load for load in loads if load.curvature), loads[0])
    rate = offered[last.name].updates
    shards = enough(scene, last, rate)
    return {
        "bytes": bytes_and_links(scene),
        "server": servers(scene, loads, offered),
        "clock": clocks(scene, loads, offered),
        "models": models(scene, last, shards),
        "memory": memory(scene, shards),
        "driver": driver(scene, rate, shards),
    }


def printed(table: Table) -> str:
    said = StringIO()
    Console(width=150, file=said).print(table)
    return "\n".join(line.rstrip() for line in said.getvalue().splitlines()) + "\n"


def put(page: str, title: str, text: str) -> str:
    """A page with the block of this title written anew."""
    block = re.compile(rf"^```text {title}\n.*?^```$", re.MULTILINE | re.DOTALL)
    if not block.search(page):
        raise SystemExit(f"the page has no block ```text {title}.")
    return block.sub(lambda _: f"```text {title}\n{text}```", page)


def main(given: list[str] | None = None) -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--clients", type=int, default=1000)
    ask.add_argument("--parameters", type=float, default=1e9)
    ask.add_argument("--unit", type=float, default=60.0, help="seconds for each of the paper's fleet")
    ask.add_argument("--link", type=float, default=1.25, help="GB/s of a worker")
    ask.add_argument("--card", type=float, default=12.5, help="GB/s of a server's machine")
    ask.add_argument("--load", type=float, default=0.7, help="how busy a server may be")
    ask.add_argument("--results", type=Path, default=RESULTS)
    ask.add_argument("--page", type=Path)
    asked = ask.parse_args(given)
    figures = json.loads(asked.results.read_text("utf-8"))
    scene = Scene(
        asked.clients, int(asked.parameters), asked.unit, asked.link * 1e9, asked.card * 1e9, asked.load, figures
    )
    page = asked.page.read_text("utf-8") if asked.page else ""
    for title, made in sections(scene).items():
        text = printed(made)
        print(f"{title}\n{text}")
        page = put(page, title, text) if page else page
    if asked.page:
        asked.page.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
