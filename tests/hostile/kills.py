"""Runs that are killed, again and again: they end with the bits of a run that was left alone."""

from __future__ import annotations

import time
from contextlib import chdir
from pathlib import Path
from random import Random

from tests.cli.conftest import SMALL
from tests.forkserver import Program
from tests.hostile.verdicts import Tally, command

ENGINES: dict[str, list[str]] = {
    "sim": [],
    "processes": ["engine.kind=sim", "engine.workers=2"],
    "threads": ["engine.kind=threads"],
}
RAY = ["engine.kind=ray", "engine.workers=2"]  # takes seconds to start
RAY_EVERY = 25  # tries
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
RUN = "from tardygrad_command import main; main()"
SETTINGS = ["task.dimension=300", "run.rounds=60", "run.checkpoint_every=4", "run.evaluate_every=20"]
SECONDS = 120.0  # after which a process counts as hung


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Kill a run of every engine and method at random moments up to three times, resume it, and compare its model."""
    random, tally = Random(seed), Tally("kills")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    whole: dict[tuple[str, str], bytes] = {}
    with chdir(folder):
        for number in range(tries):
            engine, method = list(ENGINES)[number % len(ENGINES)], list(METHODS)[number % len(METHODS)]
            if number % RAY_EVERY == RAY_EVERY - 1:
                engine = "ray"
            given = ["small.toml", *SETTINGS, *METHODS[method], *ENGINES.get(engine, RAY)]
            real_clock = engine in ("threads", "ray")  # the order of arrivals is not known before
            if (engine, method) not in whole and not real_clock:
                alone = command("run", *given, "--out", f"whole-{engine}-{method}")
                if alone.code:
                    tally.add("wrong", f"{engine} {method}", alone.err)
                    continue
                whole[engine, method] = Path(f"whole-{engine}-{method}/model.safetensors").read_bytes()
            out, what = f"run-{number}", f"{engine} {method}, kill {number}"
            arguments = ["run", *given, "--out", out]
            hung = False
            for _ in range(random.randint(1, 3)):
                hung = hung or not _killed(arguments, Path(out), random.randrange(40))
                if Path(out, "spec.json").exists():
                    arguments = ["resume", out]
            ended = command(*arguments)
            if ended.fault or hung:
                tally.add(ended.fault or "hung", what, ended.err[-600:])
            elif ended.code:
                tally.add("wrong", what, ended.err)
            elif real_clock:
                again = command("replay", out)
                tally.add("wrong" if again.code else "right", what, again.err)
            else:
                same = Path(out, "model.safetensors").read_bytes() == whole[engine, method]
                tally.add("right" if same else "wrong", what, "other bits")
    return tally


def _killed(argv: list[str], out: Path, rounds: int) -> bool:
    """Kill a command when its run has made so many more rounds, or ended; returns whether it came so far."""
    before, until = _rounds(out), time.monotonic() + SECONDS
    with Program(RUN, *argv) as process:
        while process.poll() is None and _rounds(out) < before + rounds:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
    return True


def _rounds(out: Path) -> int:
    """A measure of how far a run has come: the lines of its metrics that are on the disk."""
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
