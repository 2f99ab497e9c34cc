"""Checkpoints that are written while the run goes on, and runs that are told to stop while they wait."""

from __future__ import annotations

import copy
import errno
import json
import os
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.engines.contract import Pending
from tardygrad.runs import checkpoint, packing
from tardygrad.runs.checkpoint import Checkpoint
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_json, to_json_value
from tests.forkserver import Program

CLIENTS = 4
METHOD = tg.clip2(
    local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=2, local_steps=2, mode="client", compensate=True
)


def task() -> Any:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    return tg.tasks.quadratic(clients=CLIENTS, dimension=40, heterogeneity=1.0, noise=noise)


def trained(out: Path, *, rounds: int = 20, checkpoint_every: int = 4, **settings: Any) -> tg.Run:
    with tg.ThreadPool(task(), METHOD) as pool:
        how: Any = {"rounds": rounds, "checkpoint_every": checkpoint_every, "evaluate_every": 0, "out": out, **settings}
        return tg.train(METHOD, task(), pool, **how)


def gone_on(path: Path, rounds: int | None = None) -> tg.Run:
    with tg.ThreadPool(task(), METHOD) as pool:
        run = tg.resume(path, METHOD, task(), pool, rounds=rounds)
        for _ in run.go():
            pass
        return run


class Written(list[tuple[str, int]]):
    """The rounds whose checkpoints were written, each with the thread that did it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait: Callable[[int], None] = lambda made: None) -> None:
        save = checkpoint.save

        def slowly(folder: Path, made: Checkpoint, **also: Any) -> None:
            wait(made.state["round"])
            save(folder, made, **also)
            self.append((threading.current_thread().name, made.state["round"]))

        monkeypatch.setattr(checkpoint, "save", slowly)

    @property
    def rounds(self) -> list[int]:
        return [made for _, made in self]


def test_a_real_clock_waits_for_no_disk_and_a_virtual_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    trained(tmp_path / "real")
    assert {name.partition("_")[0] for name, _ in written} == {"tardygrad-checkpoint"}
    assert written.rounds == [*range(2, 20, 2), 20]  # twice as often as was asked for
    written.clear()
    tg.simulate(METHOD, task(), tg.Fleet.paper(clients=CLIENTS), rounds=20, checkpoint_every=4, out=tmp_path / "sim")
    assert written == [("MainThread", made) for made in (4, 8, 12, 16, 20)]


def test_one_for_every_round_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch)
    trained(tmp_path / "run", rounds=6, checkpoint_every=1)
    assert written == [("MainThread", made) for made in range(1, 7)]


@pytest.mark.parametrize("every", [2, 5])
def test_however_slow_the_disk_no_more_rounds_are_lost_than_was_said(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def wait(made: int) -> None:
        """Until all rounds are seen that can be before the next is to be written."""
        then = made + max(every // 2, 1)
        while len(lost) < (then - 1 if then < 26 else 26):
            time.sleep(0.001)

    written = Written(monkeypatch, wait)
    with tg.ThreadPool(task(), METHOD) as pool:
        run = tg.begin(METHOD, task(), pool, rounds=26, checkpoint_every=every, evaluate_every=0, out=tmp_path / "run")
        for row in run.go():
            lost.append(row["round"] - max(written.rounds, default=0))
    assert 1 < max(lost) <= every
    assert written.rounds[-1] == 26


def test_what_is_written_is_what_was_when_it_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: the server goes on with its lists and vectors meanwhile."""
    captured: list[tuple[str, dict[str, torch.Tensor]]] = []
    found: list[tuple[str, dict[str, torch.Tensor]]] = []
    capture, save = checkpoint.capture, checkpoint.save

    def seen(*given: Any) -> Checkpoint:
        made = capture(*given)
        captured.append((json.dumps(to_json_value(made.state)), copy.deepcopy(made.tensors)))
        return made

    def late(folder: Path, made: Checkpoint, **also: Any) -> None:
        time.sleep(0.03)
        found.append((json.dumps(to_json_value(made.state)), made.tensors))
        save(folder, made, **also)

    monkeypatch.setattr(checkpoint, "capture", seen)
    monkeypatch.setattr(checkpoint, "save", late)
    trained(tmp_path / "run", rounds=24, checkpoint_every=8)
    assert len(captured) == len(found) == 6
    for (facts, tensors), (facts_then, tensors_then) in zip(captured, found, strict=True):
        assert facts_then == facts
        assert tensors_then.keys() == tensors.keys()
        assert all(torch.equal(tensors_then[name], tensor) for name, tensor in tensors.items())


def test_what_is_captured_of_regions_stays_as_it_was() -> None:
    """When one of them has made a round, the others are in the middle of theirs."""
    here = tg.tasks.quadratic(clients=CLIENTS, dimension=3)
    method = tg.halos(regions=2, buffer=2, local_lr=0.1, local_steps=1, every=1)
    server = tg.serve(method, here.init(0), clients=CLIENTS, seed=0)
    then: list[tuple[Checkpoint, str, dict[str, torch.Tensor]]] = []
    for _ in tg.drive(server, tg.SimPool(here, method, tg.Fleet.paper(clients=CLIENTS)), 9):
        made = checkpoint.capture(server, Pending(0.0, [], []))
        then.append((made, json.dumps(to_json_value(made.state)), copy.deepcopy(made.tensors)))
    assert any(made.state["server"]["levels"][1]["sum"] for made, *_ in then)
    for made, facts, tensors in then:
        assert json.dumps(to_json_value(made.state)) == facts
        assert all(torch.equal(made.tensors[name], tensor) for name, tensor in tensors.items())


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("rounds", [5, 30])
def test_a_disk_that_is_full_ends_the_run_and_the_last_checkpoint_stands(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5 rounds more there is no checkpoint but the last one, at the end."""
    path = tmp_path / "run"
    trained(path, rounds=10)
    before = checkpoint.newest(path / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(tg.RecordError, match=r"cannot write to .*No space left on device.*checkpoint is untouched"):
            gone_on(path, rounds=10 + rounds)
    assert checkpoint.newest(path / "checkpoints") == before
    run = gone_on(path, rounds=40)
    assert run.server.round == 40
    assert [row["round"] for row in read_metrics(path / "events.jsonl")] == list(range(1, 41))
    assert torch.equal(tg.replay(run).x, run.x)


def test_a_writer_raises_what_went_wrong_once_and_goes_on() -> None:
    saver, done = checkpoint.Saver(), []
    saver.finish()
    saver.begin(full)
    with pytest.raises(OSError, match="No space left"):
        saver.begin(lambda: done.append("not begun"))
    saver.begin(lambda: done.append("then"))
    saver.finish()
    saver.finish()
    assert done == ["then"]


# Killed.

KILLS = 12
EVERY = 4
KILLER = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    import torch
    import tardygrad as tg
    from tests.runs.test_checkpoint import EVERY, KILLS, METHOD, gone_on, task

    torch.set_num_threads(1)
    out, rng = Path(sys.argv[1]), np.random.default_rng(int(sys.argv[2]))

    def run(said):
        with tg.ThreadPool(task(), METHOD) as pool:
            if (out / "spec.json").exists():
                run = tg.resume(out, METHOD, task(), pool)
            else:
                how = {"rounds": 10**6, "checkpoint_every": EVERY, "evaluate_every": 7}
                run = tg.begin(METHOD, task(), pool, **how, out=out)
            os.write(said, b"%8d" % run.server.round)
            for row in run.go():
                os.write(said, b"%8d" % row["round"])

    def child():
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                run(said)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(said)
        return pid, heard

    last = 0
    for _ in range(KILLS):
        pid, heard = child()
        start = int(os.read(heard, 8) or b"-1")
        assert start >= last - EVERY, f"{last - start} rounds are lost"
        for _ in range(rng.integers(0, 20)):
            os.read(heard, 8)
        time.sleep(rng.uniform(0, 0.005))
        os.kill(pid, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the run has ended by itself"
        last = start
        while made := os.read(heard, 8):
            last = int(made)
        os.close(heard)
    gone_on(out, rounds=last + 20)
"""


def test_a_run_on_threads_that_is_killed_again_and_again_loses_little_and_its_record_is_sound(tmp_path: Path) -> None:
    root, path = Path(__file__).parents[2], tmp_path / "run"
    killer = Program(textwrap.dedent(KILLER), str(path), "7", env=os.environ | {"PYTHONPATH": str(root)})
    _, errors = killer.communicate(200)
    assert killer.returncode == 0, errors
    made = read_json(path / "summary.json")["rounds"]
    assert made >= 20
    run = gone_on(path, rounds=made)
    assert [row["round"] for row in read_metrics(path / "events.jsonl")] == list(range(1, made + 1))
    assert run.summary().refused == {}
    replayed = tg.replay(run)
    assert torch.equal(replayed.x, run.x)
    assert replayed.script == run.script


# Stopped.


class Stuck(type(task())):  # type: ignore[misc]
    """A task whose client 1 does not come back before it is told to."""

    def __init__(self) -> None:
        vars(self).update(vars(task()), at_work=threading.Event(), let_go=threading.Event())

    def gradient(self, x: Any, batch: Any, module_buffers: Any) -> Any:
        if batch.client == 1:
            self.at_work.set()
            assert self.let_go.wait(60)
        return super().gradient(x, batch, module_buffers)


def test_a_run_that_waits_for_a_slow_job_stops_at_once_and_can_be_resumed(tmp_path: Path) -> None:
    stuck: Any = Stuck()
    sync = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=CLIENTS, local_steps=2, mode="server")
    with tg.ThreadPool(stuck, sync) as pool:
        run = tg.begin(sync, stuck, pool, rounds=3, evaluate_every=0, out=tmp_path / "run")

        def stop() -> None:
            assert stuck.at_work.wait(60)
            time.sleep(0.1)  # the others are back
            run.stop()

        teller = threading.Thread(target=stop)
        teller.start()
        assert list(run.go()) == []
        assert not stuck.let_go.is_set()  # nobody has waited for it
        teller.join()
        stuck.let_go.set()
    assert run.status == "stopped"
    with tg.ThreadPool(task(), sync) as pool:
        again = tg.resume(tmp_path / "run", sync, task(), pool)
        assert [row["round"] for row in again.go()] == [1, 2, 3]
    whole = tg.simulate(sync, task(), tg.Fleet.paper(clients=CLIENTS), rounds=3)
    torch.testing.assert_close(again.x, whole.x)  # the same jobs, in another order
    assert torch.equal(tg.replay(again).x, again.x)


def drained(pool: tg.ThreadPool) -> None:
    while pool.next() is not None:
        pass


def test_a_stop_that_came_too_late_does_not_end_the_next_run() -> None:
    with tg.ThreadPool(task(), METHOD) as pool:
        first = tg.train(METHOD, task(), pool, rounds=5, evaluate_every=0)
        drained(pool)
        first.stop()
        first.stop()
        second = tg.train(METHOD, task(), pool, rounds=5, evaluate_every=0)
    assert second.status == "finished"
    assert second.server.round == 5


def test_a_stop_in_the_loops_body_is_not_heard_again_by_who_resumes_on_the_same_threads(tmp_path: Path) -> None:
    slow = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.5, buffer=1, local_steps=2, concurrency=1)
    with tg.ThreadPool(task(), slow) as pool:
        run = tg.begin(slow, task(), pool, rounds=9, evaluate_every=0, out=tmp_path / "run")
        for row in run.go():
            if row["round"] == 4:
                run.stop()
        assert run.status == "stopped"
        pool.interrupt(False)
        drained(pool)
        run.stop()
        again = tg.resume(tmp_path / "run", slow, task(), pool)
        assert [row["round"] for row in again.go()] == [5, 6, 7, 8, 9]


def test_a_run_that_is_stopped_before_it_begins_makes_no_round(tmp_path: Path) -> None:
    with tg.ThreadPool(task(), METHOD) as pool:
        run = tg.begin(METHOD, task(), pool, rounds=5, evaluate_every=0, out=tmp_path / "run")
        run.stop()
        assert list(run.go()) == []
    assert (run.status, run.server.round) == ("stopped", 0)
    assert gone_on(tmp_path / "run").server.round == 5


def test_checkpoints_that_are_replaced_while_they_are_read_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tg.simulate(
        tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=1, local_steps=1, mode="client"),
        tg.tasks.quadratic(clients=2, dimension=3), tg.Fleet.paper(clients=2), rounds=2, out=tmp_path / "run",
    )  # fmt: skip
    folder, once = tmp_path / "run/checkpoints", checkpoint._read

    def replaced(path: Path) -> checkpoint.Checkpoint:
        if path.name == "00000001":
            path.rename(folder / "00000002")
        return once(path)

    monkeypatch.setattr(checkpoint, "_read", replaced)
    assert [path.name for path in folder.iterdir()] == ["00000001"]
    saved = checkpoint.read(folder)
    assert saved is not None
    assert saved.state["round"] == 2


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
)


@given(DATA | st.lists(st.tuples(st.floats(), st.integers())))
def test_packed_data_is_unpacked_as_it_was(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "LONG", 2)
        tensors: dict[str, torch.Tensor] = {}
        text = json.dumps(packing.pack(value, tensors), allow_nan=False)
    back = packing.unpack(json.loads(text), tensors)
    assert repr(back) == repr(value)  # of NaN, -0.0, tuples and lists too


def test_long_lists_of_jobs_are_stored_as_arrays_and_share_their_vectors() -> None:
    models = [torch.zeros(3), torch.ones(3)]
    jobs = [tg.Job(client, 2 * client, client % 2, models[client % 2], 4, None, 0) for client in range(packing.LONG)]
    tensors: dict[str, torch.Tensor] = {}
    packed = packing.pack({"jobs": jobs, "round_of": {job.client: job.round for job in jobs}}, tensors)
    assert len(json.dumps(packed)) < 500
    assert sum(tensor.dtype == torch.float32 for tensor in tensors.values()) == 2
    back = packing.unpack(packed, tensors)
    assert back["round_of"] == {job.client: job.round for job in jobs}
    assert [job._replace(x=None) for job in back["jobs"]] == [job._replace(x=None) for job in jobs]
    assert all(job.x is models[job.round] for job in back["jobs"])


def test_an_outer_step_may_change_the_shapes_and_types_of_its_state(tmp_path: Path) -> None:
    def init(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"norms": torch.zeros(0), "count": torch.tensor(0), "mean": torch.zeros_like(x), "first": x}

    def update(direction: torch.Tensor, state: Any, step: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        norms = torch.cat([state["norms"], direction.norm()[None]])
        mean = 0.9 * state["mean"].double() + direction
        return 0.1 * mean.float(), {"norms": norms, "count": state["count"] * 0.9 + 1, "mean": mean}

    method = replace(METHOD, outer=tg.Transform(init, update))
    fleet = tg.Fleet.paper(clients=CLIENTS)
    whole = tg.simulate(method, task(), fleet, rounds=8)
    tg.simulate(method, task(), fleet, rounds=4, checkpoint_every=4, out=tmp_path / "run")
    run = tg.resume(tmp_path / "run", method, task(), fleet, rounds=8)
    for _ in run.go():
        pass
    assert torch.equal(run.x, whole.x)


def test_a_run_with_many_clients_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LONG", 2)
    settings: Any = {"checkpoint_every": 3, "evaluate_every": 0}
    fleet = tg.Fleet.paper(clients=CLIENTS, stragglers="large")
    whole = tg.simulate(METHOD, task(), fleet, rounds=20, **settings)
    tg.simulate(METHOD, task(), fleet, rounds=9, out=tmp_path / "run", **settings)
    assert "$rows" in next((tmp_path / "run/checkpoints").glob("*/state.json")).read_text()
    run = tg.resume(tmp_path / "run", METHOD, task(), fleet, rounds=20)
    for _ in run.go():
        pass
    assert torch.equal(run.x, whole.x)
    assert run.script == whole.script
    assert torch.equal(tg.replay(run).x, whole.x)
