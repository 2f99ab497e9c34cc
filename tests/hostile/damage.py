"""Damage to records: whatever reads them gives the same answer as before, or refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from itertools import product
from pathlib import Path
from random import Random

from tests.cli.conftest import SMALL
from tests.hostile.verdicts import Tally, command

Damage = Callable[[Random, bytes], bytes]


def _flip(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _digit(random: Random, content: bytes) -> bytes:
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return _flip(random, content)
    place = random.choice(places)
    return content[:place] + bytes([48 + (content[place] - 48 + random.randrange(1, 10)) % 10]) + content[place + 1 :]


def _lines(change: Callable[[Random, list[bytes]], list[bytes]]) -> Damage:
    return lambda random, content: b"".join(change(random, content.splitlines(keepends=True)))


def _lose_line(random: Random, lines: list[bytes]) -> list[bytes]:
    del lines[random.randrange(len(lines))]
    return lines


def _repeat_line(random: Random, lines: list[bytes]) -> list[bytes]:
    at = random.randrange(len(lines))
    return lines[: at + 1] + lines[at:]


def _swap_lines(random: Random, lines: list[bytes]) -> list[bytes]:
    random.shuffle(lines)
    return lines


def _insert(random: Random, content: bytes) -> bytes:
    at, text = random.randrange(len(content)), random.choice([b"\0", b"{}\n", b"[[[", b"\xff\xfe", b"1e999", b"null"])
    return content[:at] + text + content[at:]


DAMAGES: dict[str, Damage] = {
    "flip a bit": _flip,
    "change a digit": _digit,
    "lose a line": _lines(_lose_line),
    "repeat a line": _lines(_repeat_line),
    "shuffle lines": _lines(_swap_lines),
    "insert": _insert,
    "cut": lambda random, content: content[: random.randrange(len(content))],
    "empty": lambda random, content: b"",
    "zeros": lambda random, content: bytes(len(content)),
}
READERS = {
    "resume": ("resume", "run"),
    "replay": ("replay", "run"),
    "doctor": ("doctor", "run", "--json"),
    "export": ("export", "run", "--out", "tables"),
    "report": ("report", "run", "--out", "page.html"),
    "fit": ("plan", "small.toml", "--fit", "run", "--json"),
}
PARTS = ["spec.json", "events.jsonl", "summary.json", "model.safetensors", "checkpoints", "newest"]
NEWEST = "checkpoints/00000002"  # of the killed run
DONORS = {"seed": ["run.seed=1"], "clip": ["method.clip=0.3"], "method": ["method.compensate=true"], "twin": []}


def make_records(folder: Path, *overrides: str) -> dict[str, Path]:
    """A finished run, and one that was killed after a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(SMALL)
    with chdir(folder):
        assert command("run", "small.toml", *overrides, "--out", "whole/run").code == 0
    shutil.copytree(folder / "whole", folder / "killed")
    for name in ("summary.json", "model.safetensors", "checkpoints/00000003"):
        path = folder / "killed/run" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {name: folder / name for name in ("whole", "killed")}


def answers(folder: Path, reader: str) -> tuple[object, ...]:
    """How a command ended, and what it wrote."""
    with chdir(folder):
        ended = command(*READERS[reader])
    written: list[bytes] = []
    if reader == "resume" and ended.code == 0:
        written = [(folder / "run/model.safetensors").read_bytes()]
    elif ended.code == 0:
        tables = sorted(path for path in (folder / "tables").rglob("*") if path.is_file())
        written = [path.read_bytes() for path in (*tables, *folder.glob("page.html"))]
    out = "" if reader == "resume" else ended.out  # whose summary says how long it took
    return ended, out, written


def attack(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Damage one file of a record, read it with one command, and compare with the undamaged record."""
    random, tally = Random(seed), Tally("corruptions")
    records = make_records(folder / "records")
    right: dict[tuple[str, str], tuple[object, ...]] = {}
    for number, (record, reader, name, path) in enumerate(_attacks(random, records, tries)):
        if (record, reader) not in right:
            shutil.copytree(records[record], folder / "right", dirs_exist_ok=False)
            right[record, reader] = answers(folder / "right", reader)
            shutil.rmtree(folder / "right")
        work = folder / f"try-{number}"
        shutil.copytree(records[record], work)
        content = (work / path).read_bytes()
        damaged = DAMAGES[name](random, content)
        (work / path).write_bytes(damaged)
        ended, *found = answers(work, reader)
        shutil.rmtree(work)
        what = f"{reader} a {record} run: {name} of {path}"
        same = found == list(right[record, reader][1:]) or damaged == content
        earlier = record == "killed" and content.startswith(damaged[: damaged.rfind(b"\n") + 1])  # killed earlier
        if ended.verdict == "right" and not (same or earlier):
            tally.add("wrong", what, "another answer")
        else:
            tally.add(ended.verdict, what, ended.detail)
    return tally


def _attacks(random: Random, records: dict[str, Path], tries: int) -> Iterator[tuple[str, str, str, Path]]:
    for _ in range(tries):
        record, reader = random.choice(sorted(records)), random.choice(sorted(READERS))
        files = sorted(path for path in records[record].rglob("*") if path.is_file() and path.stat().st_size)
        yield record, reader, random.choice(sorted(DAMAGES)), random.choice(files).relative_to(records[record])


def swap(folder: Path, tries: int, seed: int = 0) -> Tally:
    """Put a part of another run into a record, read it with one command, and compare with the record as it was."""
    random, tally = Random(seed), Tally("swapped parts")
    records = make_records(folder / "records")
    donors = {name: make_records(folder / name, *changes) for name, changes in DONORS.items()}
    attacks = list(product(records, READERS, PARTS, DONORS))
    for number, (record, reader, part, donor) in enumerate(random.sample(attacks, min(tries, len(attacks)))):
        work, right = folder / f"try-{number}", folder / f"right-{number}"
        for copy in (work, right):
            shutil.copytree(records[record], copy)
            (copy / "small.toml").write_text(SMALL)
        name = "checkpoints/00000003" if part == "newest" and record == "whole" else part.replace("newest", NEWEST)
        given = donors[donor][record] / "run" / name
        if given.is_dir():
            shutil.rmtree(work / "run" / name)
            shutil.copytree(given, work / "run" / name)
        elif given.exists():
            shutil.copy(given, work / "run" / name)
        (ended, *found), (_, *expected) = answers(work, reader), answers(right, reader)
        other = ended.verdict == "right" and found != expected
        tally.add("wrong" if other else ended.verdict, f"{reader} a {record} run: {part} of {donor}", ended.detail)
        shutil.rmtree(work)
        shutil.rmtree(right)
    return tally
