"""Attacks that once succeeded: hangs, silent losses, damaged records, absurd numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.cli.main import main

FLEET = tg.Fleet.paper(clients=5)


def task(**how: Any) -> Any:
    return tg.tasks.quadratic(**({"clients": 5, "dimension": 4, "heterogeneity": 1.0} | how))


def method(**how: Any) -> tg.Method:
    settings = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "buffer": 2, "local_steps": 2, "mode": "client"}
    return tg.sgdclip(**(settings | how))


def exit_code(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(argv))
    return int(str(caught.value.code))


def test_a_broken_client_that_takes_no_time_ends_the_run() -> None:
    base = type(task())

    class Poisoned(base):  # type: ignore[misc, valid-type]
        def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
            value, g = super().gradient(x, batch, module_buffers)
            return value, g * float("nan") if batch.client == 0 else g

    sound = task(clients=2)
    fleet = tg.Fleet((tg.Group("now", 1, tg.Uniform(0, 0)), tg.Group("later", 1, tg.Uniform(1, 1))))
    with pytest.raises(tg.Starved, match="the last 1001 updates were refused"):
        tg.simulate(method(buffer=1), Poisoned(sound.h, sound.c, None), fleet, rounds=2)


def test_a_run_that_someone_else_has_gone_on_with_is_not_rewound(tmp_path: Path) -> None:
    first = tg.begin(method(), task(), tg.SimPool(task(), method(), FLEET), rounds=40, out=tmp_path / "run")
    going = first.go()
    for _ in range(15):
        next(going)
    late = tg.resume(tmp_path / "run", method(), task(), tg.SimPool(task(), method(), FLEET))
    for _ in range(15):
        next(going)
    going.close()
    with pytest.raises(tg.RecordError, match="another process has meanwhile continued the run"):
        next(late.go())
    assert (tmp_path / "run/events.jsonl").read_text().count('"advance"') == 30


@pytest.mark.parametrize("mode", ["sync", "server"])
def test_a_round_needs_different_clients_even_if_one_comes_back(mode: Any) -> None:
    fleet = tg.Fleet((tg.Group("a", 2, tg.Uniform(1, 1)),)).crash(client=1, at=0.5).crash(client=0, at=1.2, back=1.5)
    with pytest.raises(tg.Starved):
        tg.simulate(method(mode=mode), task(clients=2), fleet, rounds=1)


def test_a_run_that_diverged_in_its_last_round_stays_so(tmp_path: Path) -> None:
    wild = {"local_lr": 100.0, "lr": 3e38, "local_steps": 1}
    with pytest.raises(tg.Diverged):
        tg.simulate(method(**wild), task(), FLEET, rounds=1, out=tmp_path / "run")
    with pytest.raises(tg.Invalid, match=r"a run that diverged cannot be resumed: .* not finite after 1 round\. Start"):
        tg.resume(tmp_path / "run", method(**wild), task(), tg.SimPool(task(), method(**wild), FLEET))


def test_a_flipped_bit_in_a_checkpoint_is_noticed_and_the_one_before_taken(tmp_path: Path) -> None:
    whole = tg.simulate(method(), task(), FLEET, rounds=30, out=tmp_path / "run")
    for name in ("tensors.safetensors", "state.json"):
        copy = tmp_path / name
        shutil.copytree(tmp_path / "run", copy)
        path = max((copy / "checkpoints").iterdir()) / name
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
        again = tg.resume(copy, method(), task(), tg.SimPool(task(), method(), FLEET))
        assert again.server.round < 30
        list(again.go())
        assert torch.equal(again.x, whole.x)


def test_a_record_whose_checkpoints_are_gone_is_not_erased(tmp_path: Path) -> None:
    tg.simulate(method(), task(), FLEET, rounds=30, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    with pytest.raises(tg.RecordError, match=r"made 30 rounds, but its checkpoints are missing.*tardygrad run"):
        tg.resume(tmp_path / "run", method(), task(), tg.SimPool(task(), method(), FLEET))


def test_the_remains_of_a_run_are_not_taken_for_an_empty_folder(tmp_path: Path) -> None:
    tg.simulate(method(), task(), FLEET, rounds=30, out=tmp_path / "run")
    (tmp_path / "run/spec.json").unlink()
    with pytest.raises(tg.Invalid, match="already holds a run"):
        tg.simulate(method(), task(), FLEET, rounds=5, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"a run needs `rounds`, .* or `until`, .*\. Use rounds=100"),
        ({"round": 3}, r"has no argument `round`\. Did you mean 'rounds'\?"),
        ({"rounds": 5, "evalute_every": 1}, r"no argument `evalute_every`\. Did you mean 'evaluate_every'\?"),
        ({"rounds": 5, "worker": 2}, r"no argument `worker`\. Did you mean 'workers'\?"),
        ({"rounds": 0}, "`rounds` must be a whole number, 1 or more, got 0"),
        ({"rounds": 5, "seed": True}, "`seed` must be a whole number, got True"),
    ],
)
def test_a_setting_that_is_wrong_missing_or_unknown_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tg.Invalid, match=message):
        tg.simulate(method(), task(), FLEET, **settings)
    if "worker" not in settings:
        with pytest.raises(tg.Invalid, match=message):
            tg.train(method(), task(), tg.SimPool(task(), method(), FLEET), **settings)


def test_a_task_without_a_test_set_is_refused_before_the_work() -> None:
    data = (torch.zeros(20, 2), torch.zeros(20).long())
    loss = torch.nn.functional.cross_entropy
    untested = tg.TorchTask(torch.nn.Linear(2, 2), loss=loss, data=tg.shard(data, clients=5))
    with pytest.raises(tg.Invalid, match="an evaluation needs a test set"):
        tg.simulate(method(), untested, FLEET, rounds=5)
    assert tg.simulate(method(), untested, FLEET, rounds=5, evaluate_every=0).server.round == 5


def test_short_windows_are_no_hang() -> None:
    fleet = FLEET.during([(0.0, 0.001)], client=0, period=1000.0)
    assert tg.simulate(method(), task(), fleet, rounds=5).server.round == 5
    with pytest.raises(tg.Invalid, match="windows of at least a millisecond"):
        FLEET.during([(0.0, 1e-9)], client=0, period=2e-9)


@pytest.mark.parametrize(
    "override",
    [
        f"run.seed={'9' * 5000}",
        "method.lower=1e300",
        "run.threads=2147483648",
        f"task.dimension=1{'0' * 30}",
        'fleet={kind="groups", groups=[{name="\\u001b[31m", clients=10, runtime={kind="uniform", low=1, high=2}}]}',
        'fleet={kind="groups", groups=[{name="a", clients=10, runtime={kind="integer", low=0, high=1%s}}]}'
        % ("0" * 400),
    ],
    ids=["seed", "lower", "threads", "dimension", "escape", "integer"],
)
def test_absurd_numbers_get_one_sentence(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code("run", "quadratic", override) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


DAMAGE = {
    "spec.json": [
        '{"spec": [], "run": {}, "versions": {}}',
        '{"spec": {}, "run": null, "versions": []}',
        "[" * 100_000,
    ],
    "summary.json": ["{}", '{"rounds": "x"}', "5"],
    "events.jsonl": ["5\n", "{}\n", '{"event": []}\n', '{"event": "arrival"}\n'],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_records_get_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code("run", "quadratic", "run.rounds=12", "--out", "run") == 0
    kept = (tmp_path / "run" / name).read_text()
    for content in DAMAGE[name]:
        rest = kept.split("\n", 1)[1] if name == "events.jsonl" else ""
        (tmp_path / "run" / name).write_text(content + rest)
        for verb in ("resume", "replay"):
            capsys.readouterr()
            code = exit_code(verb, "run", "--json")
            out = capsys.readouterr().out
            assert code in (0, 1, 2)
            assert isinstance(json.loads(out), dict)
