"""Disks that are full, and folders that are moved: a run ends with one sentence, and continues to the same bits."""

from __future__ import annotations

import time
from contextlib import chdir
from pathlib import Path
from random import Random

from tests.cli.conftest import SMALL
from tests.forkserver import Program
from tests.hostile.kills import RUN, rounds_on_disk, run_to_end
from tests.hostile.verdicts import FAULTS, Ended, Tally, command

FULL = """import resource, sys
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # a write beyond it fails, as on a full disk
from tardygrad.cli.main import main; main()"""
SETTINGS = ["task.dimension=300", "run.rounds=20", "run.checkpoint_every=4"]
LARGEST = 30_000  # bytes of a file of the run, about


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Let no file of a run grow beyond a random size, then resume the run without that limit."""
    random, tally = Random(seed), Tally("full disks")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    with chdir(folder):
        assert command("run", "small.toml", *SETTINGS, "--out", "whole").code == 0
        whole = Path("whole/model.safetensors").read_bytes()
        for number in range(tries):
            out, size = f"run-{number}", random.randrange(LARGEST)
            arguments = ["run", "small.toml", *SETTINGS, "--out", out]
            what = f"files of at most {size:,} bytes"
            ended = run_to_end(FULL, str(size), *arguments)
            if ended.verdict in FAULTS:
                tally.add(ended.verdict, what, ended.detail)
                continue
            again = command("resume", out) if Path(out, "spec.json").exists() else command(*arguments)
            same = again.code == 0 and Path(out, "model.safetensors").read_bytes() == whole
            tally.add(again.fault or (ended.verdict if same else "wrong"), what, again.detail)
    return tally


def move(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Rename the folder of a run while it runs, in some tries put another in its place, then resume it where it is."""
    random, tally = Random(seed), Tally("moved folders")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    settings = ["task.dimension=300", "run.rounds=200"]
    with chdir(folder):
        assert command("run", "small.toml", *settings, "--out", "whole").code == 0
        whole = Path("whole/model.safetensors").read_bytes()
        for number in range(tries):
            out, away = Path(f"run-{number}"), Path(f"away-{number}")
            every = random.choice((1, 7, 1000))
            what = f"after {(rounds := random.randrange(150))} rounds, with a checkpoint every {every}"
            with Program(
                RUN, "run", "small.toml", *settings, f"run.checkpoint_every={every}", "--out", str(out)
            ) as run:
                while run.poll() is None and (rounds_on_disk(out) < rounds or not (out / "events.jsonl").exists()):
                    time.sleep(0.0005)
                out.rename(away)
                if replaced := random.random() < 0.3:
                    out.mkdir()
                _, errors = run.communicate()
            again = command("resume", str(away))
            ended = Ended(run.returncode, "", errors, "traceback" if "Traceback" in errors else "")
            split = any(out.glob("*")) or out.exists() != replaced
            same = again.code == 0 and Path(away, "model.safetensors").read_bytes() == whole
            tally.add(ended.verdict if same and not split else "wrong", what, ended.detail + again.detail)
    return tally
