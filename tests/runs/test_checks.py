"""Checksums of records: whatever was changed, lost, repeated or moved is found and named where the record is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.runs.events import read_metrics
from tardygrad.runs.export import export
from tardygrad.runs.history import read_history
from tardygrad.runs.record import EVENTS, read_json, read_lines, write_json
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad

ROUNDS = 12


def task() -> Any:
    return tg.tasks.quadratic(clients=6, dimension=20)


def fleet() -> tg.Fleet:
    return tg.Fleet.paper(clients=6)


def method(**changes: Any) -> tg.Method:
    settings = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2}
    return tg.clip2(mode="client", **(settings | changes))


def resumed(path: Path, how: tg.Method | None = None, rounds: int = ROUNDS) -> tg.Run:
    how = how or method()
    return tg.resume(path, how, task(), tg.SimPool(task(), how, fleet()), rounds=rounds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    tg.simulate(method(), task(), fleet(), rounds=ROUNDS, checkpoint_every=4, out=path)
    return path


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def changed(lines: list[bytes], number: int) -> list[bytes]:
    line = lines[number]
    digit = next(i for i, byte in enumerate(line) if chr(byte).isdigit())
    other = b"%d" % ((line[digit] - ord("0") + 1) % 10)
    return [*lines[:number], line[:digit] + other + line[digit + 1 :], *lines[number + 1 :]]


def lost(lines: list[bytes], number: int) -> list[bytes]:
    return lines[:number] + lines[number + 1 :]


def repeated(lines: list[bytes], number: int) -> list[bytes]:
    return lines[: number + 1] + lines[number:]


def swapped(lines: list[bytes], number: int) -> list[bytes]:
    return [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]


def unchecked(lines: list[bytes], number: int) -> list[bytes]:
    return [*lines[:number], lines[number].rpartition(b',"check"')[0] + b"}\n", *lines[number + 1 :]]


DAMAGE = [changed, lost, repeated, swapped, unchecked]


@pytest.mark.parametrize(("damage", "number"), zip(DAMAGE, (0, 3, 7, 0, 3), strict=True))
def test_damaged_lines_are_found_and_named(damage: Callable[..., list[bytes]], number: int, run_dir: Path) -> None:
    path = run_dir / EVENTS
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True), number)))
    with pytest.raises(tg.RecordError, match=r"line \d+ of .* is damaged: its checksum is wrong"):
        list(read_lines(path))
    with pytest.raises(tg.RecordError, match=rf"{EVENTS}' is damaged: .*\. Restore it .*tardygrad resume {run_dir}"):
        read_history(run_dir)


def test_a_record_that_lost_its_end_is_damaged(run_dir: Path) -> None:
    lines = (run_dir / EVENTS).read_bytes().splitlines(keepends=True)
    for left in (lines[:-1], []):
        (run_dir / EVENTS).write_bytes(b"".join(left))
        for read in (read_history, lambda folder: export([folder], folder / "export", ["csv"])):
            with pytest.raises(tg.RecordError, match="lines at its end were changed or are missing"):
                read(run_dir)


@pytest.mark.parametrize("damage", [lost, swapped])
def test_resume_goes_back_to_a_checkpoint_before_the_damage(
    damage: Callable[..., list[bytes]], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = resumed(run_dir, rounds=16)
    for _ in run.go():
        pass
    right = tg.simulate(method(), task(), fleet(), rounds=16)
    assert torch.equal(run.x, right.x)
    path = run_dir / EVENTS
    lines = path.read_bytes().splitlines(keepends=True)
    after = next(i for i, line in enumerate(lines) if b'"advance"' in line and b'"round":13' in line)
    path.write_bytes(b"".join(damage(lines, after)))  # checkpoints are at rounds 12 and 16
    again = resumed(run_dir, rounds=20)
    assert again.server.round == 12
    err = capsys.readouterr().err
    assert err.startswith("warning: the newest checkpoint cannot be used: line ")
    assert f"of '{path}' is damaged: its checksum is wrong" in err
    assert re.search(r"\. The run goes on from round 12, and \d rounds will be computed again\.\n$", err)
    for _ in again.go():
        pass
    assert torch.equal(again.x, tg.simulate(method(), task(), fleet(), rounds=20).x)
    assert [row["round"] for row in read_metrics(path)] == list(range(1, 21))
    read_history(run_dir)


def test_resume_refuses_a_record_that_is_damaged_before_all_checkpoints(run_dir: Path) -> None:
    path = run_dir / "events.jsonl"
    path.write_bytes(b"".join(repeated(path.read_bytes().splitlines(keepends=True), 2)))
    with pytest.raises(
        tg.RecordError, match=r"no checkpoint in .* can be used: line 4 of .* its checksum is wrong"
    ) as caught:
        resumed(run_dir)
    assert str(caught.value).count("line 4 of") == 1  # both checkpoints have the same reason
    assert str(caught.value).endswith(f"Restore it from a copy, or start again: tardygrad run {run_dir} --out NEW")
    assert "tardygrad resume" not in str(caught.value)


@pytest.mark.parametrize("part", ["spec.json", EVENTS, "summary.json", "checkpoints"])
def test_a_part_of_another_run_is_refused(part: str, run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tg.simulate(method(), task(), fleet(), rounds=ROUNDS, checkpoint_every=4, out=other)  # the same in all but its id
    (run_dir / part).rename(tmp_path / "own")
    (other / part).rename(run_dir / part)
    how = r"belongs to another run than the spec\.json|lines at its end were changed"
    if part != "checkpoints":
        for read in (read_history, lambda folder: export([folder], tmp_path / "tables", ["csv"])):
            with pytest.raises(tg.RecordError, match=how):
                read(run_dir)
    if part == "summary.json":
        resumed(run_dir)  # writes it again
    else:
        with pytest.raises(tg.RecordError, match=how):
            resumed(run_dir)


@pytest.mark.parametrize("had", [None, 5])
def test_a_record_of_another_format_is_refused(had: int | None, run_dir: Path) -> None:
    recorded = {name: value for name, value in read_json(run_dir / "spec.json").items() if name != "format"}
    write_json(run_dir / "spec.json", recorded | ({"format": had} if had else {}))
    for read in (read_history, resumed, lambda folder: export([folder], folder / "tables", ["csv"])):
        with pytest.raises(tg.RecordError, match=rf"has format {had or 'none'}, and this version of tardygrad reads"):
            read(run_dir)


def test_an_edited_json_file_is_found(run_dir: Path) -> None:
    for name, old, new in (("spec.json", '"seed": 0', '"seed": 1'), ("summary.json", '"lost": 0', '"lost": 1')):
        text = (run_dir / name).read_text()
        assert old in text
        (run_dir / name).write_text(text.replace(old, new, 1))
        for read in (read_history, lambda folder, name=name: read_json(folder / name)):
            with pytest.raises(tg.RecordError, match=rf"{name}' is damaged: its checksum is wrong"):
                read(run_dir)
        (run_dir / name).write_text(text)


def test_a_damaged_model_is_refused_and_resume_restores_it(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    path = Path("here/model.safetensors")
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    for command in ("replay", "report"):
        code, _, err = tardygrad(command, "here")
        assert code == 1
        assert "model.safetensors' is damaged: its checksum is wrong" in err
        assert "tardygrad resume here" in err
    assert tardygrad("resume", "here").code == 0
    assert path.read_bytes() == right
    assert "the same bits" in tardygrad("replay", "here").out


def test_a_damaged_summary_is_refused_and_resume_writes_it_again(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    path = Path("here/summary.json")
    right = json.loads(path.read_text())
    for damaged in ("{", path.read_text().replace('"lost": 0', '"lost": 1')):
        path.write_text(damaged)
        for command in ("replay", "report", "doctor"):
            code, _, err = tardygrad(command, "here")
            assert (code, err.endswith("Write it again: tardygrad resume here\n")) == (1, True), err
        assert tardygrad("resume", "here").code == 0
        again = json.loads(path.read_text())
        assert {**again, "seconds": 0, "check": ""} == {**right, "seconds": 0, "check": ""}


def test_every_command_that_reads_a_record_names_an_edited_line_and_resume_makes_it_again(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    path = Path("here", EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(changed(lines, len(lines) - 2)))
    summary = Path("here/summary.json").read_bytes()
    for killed in (True, False):
        Path("here/summary.json").unlink() if killed else Path("here/summary.json").write_bytes(summary)
        for command in ("report", "doctor", *(() if killed else ("replay",))):
            code, _, err = tardygrad(command, "here")
            assert (code, f"of 'here/{EVENTS}' is damaged: its checksum is wrong" in err) == (1, True), command
            assert err.endswith("tardygrad resume here\n")
    assert tardygrad("resume", "here").code == 0
    assert len(path.read_bytes().splitlines()) == len(lines)
    assert tardygrad("report", "here").code == 0


def test_a_json_file_may_be_formatted_anew(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1.5, None], "a": "Σ"})
    (tmp_path / "a.json").write_text(json.dumps(json.loads((tmp_path / "a.json").read_text()), sort_keys=True))
    assert read_json(tmp_path / "a.json") == {"b": [1.5, None], "a": "Σ"}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"task": lambda: tg.tasks.quadratic(clients=6, dimension=20, condition=3.0)}, "`condition` is 10.0, got 3.0"),
        (
            {"fleet": lambda: tg.Fleet.paper(clients=6, stragglers="mild")},
            "the fleet must .* `stragglers` is 'large', got 'mild'",
        ),
    ],
)
def test_resume_checks_task_and_fleet(changed: dict[str, Callable[[], Any]], text: str, run_dir: Path) -> None:
    made: dict[str, Any] = {"task": task, "fleet": fleet} | changed
    objects = {name: make() for name, make in made.items()}
    with pytest.raises(tg.Invalid, match=text):
        tg.resume(run_dir, method(), objects["task"], tg.SimPool(objects["task"], method(), objects["fleet"]))
