"""Runs that are killed, again and again: they end with the bits of a run that was left alone."""

from __future__ import annotations

import time
import tomllib
from contextlib import ExitStack, chdir
from math import gcd
from pathlib import Path
from random import Random
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.spec.spec import override
from tests.cli.conftest import SMALL
from tests.engines.ray_head import started_head
from tests.forkserver import Program
from tests.hostile.verdicts import Ended, Tally, command

ENGINES: dict[str, list[str]] = {
    "sim": [],
    "processes": ["engine.kind=sim", "engine.workers=2"],
    "threads": ["engine.kind=threads"],
    "ray": ["engine.kind=ray", "engine.workers=2"],
    "flower": [],
}
OWN_RAY_EVERY = 25  # in so many tries, one run on Ray starts Ray itself; the others join a cluster, which is faster
VIRTUAL_CLOCK = ("sim", "processes")  # on the others, the order of arrivals is not known in advance
PLAIN = ["method.clip=", "method.local_clip=", "method.local_lr=0.01"]  # smaller steps, without clips
SYNC = [*PLAIN, "method.mode="]
METHODS: dict[str, list[str]] = {
    "clip2": [],
    "DC-clip2": ["method.compensate=true"],
    "sync": ["method.mode=sync"],
    "private": ["method.privacy={clip=1.0, noise_multiplier=1.0, noise_seed=7}"],
    "AdamW kept": ["method.optimizer=AdamW", "method.keep=true"],
    "sgdclip": ["method.kind=sgdclip", "method.clip="],
    "tailopt": ["method.kind=tailopt", *PLAIN],
    "fadas": ["method.kind=fadas", "method.tau_c=2", *PLAIN],
    "dn_dylu": ["method.kind=dn_dylu", "method.period=3", *SYNC],
    "fedbuff": ["method.kind=fedbuff", *PLAIN],
    "fedasync": ["method.kind=fedasync", *SYNC, "method.buffer=", "method.lr="],
    "dcasgd": ["method.kind=dcasgd", *PLAIN, "method.buffer="],
    "fedavg": ["method.kind=fedavg", *SYNC, "method.lr="],
    "fedavgm": ["method.kind=fedavgm", *SYNC],
    "fedadam": ["method.kind=fedadam", *SYNC],
    "fedyogi": ["method.kind=fedyogi", *SYNC],
    "diloco": ["method.kind=diloco", *SYNC],
    "halos": ["method.kind=halos", *SYNC, "method.regions=2"],
}
assert gcd(len(ENGINES), len(METHODS)) == 1  # so that every method meets every engine
RUN = "from tardygrad.cli.main import main; main()"
SERVE = "import sys; from tests.hostile.kills import serve_flower; serve_flower(*sys.argv[1:])"
SETTINGS = ["task.dimension=300", "run.rounds=60", "run.checkpoint_every=4", "run.evaluate_every=20"]
SECONDS = 300.0  # after which a process counts as hung


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Kill a run of every engine and method at random moments up to three times, resume it, and compare its model."""
    random, tally = Random(seed), Tally("kills")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    whole: dict[tuple[str, str], bytes] = {}
    head: Any = None
    with chdir(folder), ExitStack() as stack:
        for number in range(tries):
            engine, method = list(ENGINES)[number % len(ENGINES)], list(METHODS)[number % len(METHODS)]
            address: list[str] = []  # also of a resume, which joins no cluster that only the record names
            if engine == "ray" and number % OWN_RAY_EVERY >= len(ENGINES):
                head = head or stack.enter_context(started_head())
                address = [f"engine.address={head.address}"]
            given = ["small.toml", *SETTINGS, *METHODS[method], *ENGINES[engine], *address]
            if (engine, method) not in whole and engine in VIRTUAL_CLOCK:
                alone = command("run", *given, "--out", f"whole-{engine}-{method}")
                if alone.code:
                    tally.add("wrong", f"{engine} {method}", alone.err)
                    continue
                whole[engine, method] = Path(f"whole-{engine}-{method}/model.safetensors").read_bytes()
            out, what, code = f"run-{number}", f"{engine} {method}, kill {number}", RUN
            begin, go_on = ["run", *given, "--out", out], ["resume", out, *address]
            if engine == "flower":
                code, begin, go_on = SERVE, ["run", out, *given], ["resume", out, *given]
            ended = _killed_and_resumed(code, begin, go_on, Path(out), random)
            if ended.fault or ended.code:
                tally.add(ended.fault or "wrong", what, ended.detail)
            elif engine in VIRTUAL_CLOCK:
                same = Path(out, "model.safetensors").read_bytes() == whole[engine, method]
                tally.add("right" if same else "wrong", what, "other bits")
            else:
                again = command("replay", out)
                tally.add("wrong" if again.code else "right", what, again.err)
    return tally


def _killed_and_resumed(code: str, begin: list[str], go_on: list[str], out: Path, random: Random) -> Ended:
    """How a run ends that was killed up to three times before."""
    arguments, hung = begin, False
    for _ in range(random.randint(1, 3)):
        hung = hung or not _killed(code, arguments, out, random)
        arguments = go_on if (out / "spec.json").exists() else begin
    ended = run_to_end(code, *arguments)
    return ended._replace(fault="hung") if hung and not ended.fault else ended


def serve_flower(begin_or_resume: str, out: str, source: str, *overrides: str) -> None:
    """A Flower app in this process: a ServerApp, and a ClientApp on nodes that are threads."""
    from tests.engines.flower_grid import Grid, read_arrays_one_at_a_time

    read_arrays_one_at_a_time(pytest.MonkeyPatch())
    tables = tomllib.loads(Path(source).read_text())
    for text in overrides:
        override(tables, text)
    clients = tables["task"]["clients"]
    grid = Grid(tg.flower.client_app(tables), range(clients), of=clients)
    context: Any = SimpleNamespace(run_config={"out": out, "resume": begin_or_resume == "resume"})
    tg.flower.server_app(tables)(grid, context)
    grid.close()


def _killed(code: str, argv: list[str], out: Path, random: Random) -> bool:
    """Kill a program when its run has made some more rounds, or ended; returns False if it hung before."""
    rounds, until = rounds_on_disk(out) + random.randrange(40), time.monotonic() + SECONDS
    with Program(code, *argv) as process:
        while process.poll() is None and rounds_on_disk(out) < rounds:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
    return True


def run_to_end(code: str, *argv: str) -> Ended:
    """How a program ended; one that hangs is killed."""
    with Program(code, *argv) as process:
        timer = Timer(SECONDS, process.kill)
        timer.start()
        printed, errors = process.communicate()
        hung = not timer.is_alive()
        timer.cancel()
    fault = "hung" if hung else "traceback" if "Traceback" in errors else ""
    return Ended(process.returncode, printed, errors, fault)


def rounds_on_disk(out: Path) -> int:
    """A measure of how far a run has come: its rounds that are on the disk."""
    path = out / "events.jsonl"
    return path.read_bytes().count(b'"advance"') if path.exists() else 0
