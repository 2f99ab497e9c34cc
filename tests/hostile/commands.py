"""Command lines with strange values: an answer, or one sentence."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from random import Random

from tests.cli.conftest import SMALL
from tests.hostile.verdicts import Tally, command

VALUES = [
    "", "0", "-1", "-0.0", "1.5", "true", "nan", "inf", "-inf", "1e308", "1e-308", "9007199254740993", "1" + "0" * 30,
    "9" * 5000, '"x"', '""', '"\\u0000"', '"²"', "[]", "[1, 2]", "{}", '{kind="x"}', "{", "[", '"', "null", "x" * 300,
    '{kind="uniform", low=2, high=1}', "../../x", "a.b:c", "json:loads", "{value=1.0, exponent=500.0}", "2026-01-01",
    "{peak=1.0, rounds=0}", '["a", 1]', "0x10",
]  # fmt: skip
PATHS = [
    "", ".", "x" * 300, "x/" * 2000, "small.toml", "run", "run/spec.json", "/dev/null", "/dev/full", "no\nline", "²",
]  # fmt: skip
KEYS = [
    *(f"task.{key}" for key in ("clients", "dimension", "condition", "heterogeneity", "noise", "noise.tail", "seed")),
    *(
        f"fleet.{key}"
        for key in ("kind", "clients", "stragglers", "crashes", "slow", "available", "link", "server_time")
    ),
    *(f"fleet.{key}" for key in ("dropout", "diurnal", "slow_spells", "faults", "ids", "at_window_end", "continuous")),
    *(f"method.{key}" for key in ("kind", "local_lr", "local_clip", "lr", "clip", "lower", "norm", "buffer", "mode")),
    *(f"method.{key}" for key in ("local_steps", "downplay", "compensate", "max_delay", "concurrency", "dispatch")),
    *(f"method.{key}" for key in ("optimizer", "options", "privacy", "weight_by", "keep", "schedule", "local_epochs")),
    *(
        f"run.{key}"
        for key in ("until", "seed", "evaluate_every", "checkpoint_every", "tail_every", "threads", "track")
    ),
    *(f"engine.{key}" for key in ("kind", "workers", "batch")),
]
COMMANDS = ["run", "plan", "theory", "resume", "replay", "doctor", "report"]


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Give a command a strange value of a key that exists, a strange path, or strange words."""
    random, tally = Random(seed), Tally("command lines")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    with chdir(folder):
        assert command("run", "small.toml", "run.rounds=2", "--out", "run").code == 0
        for _ in range(tries):
            argv = _argv(random)
            ended = command(*argv)
            tally.add(ended.verdict, " ".join(map(repr, argv))[:300], ended.detail)
    return tally


def _argv(random: Random) -> list[str]:
    kind = random.random()
    if kind < 0.7:  # a strange value
        overrides = [f"{random.choice(KEYS)}={random.choice(VALUES)}" for _ in range(random.randint(1, 2))]
        return [random.choice(["run", "plan"]), "small.toml", *overrides, "run.rounds=2"]
    path = random.choice(PATHS)
    if kind < 0.9:
        name = random.choice(["resume", "replay", "doctor", "report", "export", "run", "plan", "tail"])
        return [name, path, *(["--out", random.choice(PATHS)] if name in ("report", "export", "run") else [])]
    return [random.choice(COMMANDS), *random.sample([*VALUES, *PATHS, "--json", "--help", "--trust"], 3)]
