"""Disks that are full: a run ends with one sentence, and continues to the same bits when there is room again."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from random import Random

from tests.cli.conftest import SMALL
from tests.hostile.kills import run_to_end
from tests.hostile.verdicts import FAULTS, Tally, command

FULL = """import resource, sys
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # a write beyond it fails, as on a full disk
from tardygrad_command import main; main()"""
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
