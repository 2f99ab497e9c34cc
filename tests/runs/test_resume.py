"""Exact resume: a run that is cut short, anywhere and as often as you like, ends in the same bits."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Advanced
from tardygrad.runs import checkpoint
from tardygrad.runs.history import read_history
from tardygrad.runs.record import read_json, read_lines
from tests.forkserver import Program

ROUNDS = 60


def task() -> Any:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    return tg.tasks.quadratic(clients=12, dimension=300, heterogeneity=1.0, noise=noise)


def fleet() -> tg.Fleet:
    return tg.Fleet.paper(clients=12).crash(client=3, at=7.0, back=30.0).slowed(client=0, at=2.0, until=9.0, factor=4.0)


def method(mode: Any = "client", **how: Any) -> tg.Method:
    settings = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 3, "local_steps": 3}
    return tg.clip2(mode=mode, **(settings | how))


def events(path: Path) -> list[dict[str, Any]]:
    """Without the real seconds an evaluation took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_lines(path / "events.jsonl")]


FEW: Any = {"concurrency": 6, "dispatch": "random", "max_delay": 9}


@pytest.mark.parametrize(
    ("mode", "how"),
    [("sync", {}), ("sync", {"compensate": True}), ("server", FEW), ("client", {"compensate": True}), ("client", FEW)],
)
def test_a_checkpoint_at_any_message_resumes_to_the_same_bits(mode: Any, how: Any, tmp_path: Path) -> None:
    whole = tg.simulate(method(mode, **how), task(), fleet(), rounds=ROUNDS)
    for number, cut in enumerate((1, 2, 7, 40, 100)):
        pool = tg.SimPool(task(), method(mode, **how), fleet())
        server = tg.Server(method(mode, **how), task().init(0), clients=12, seed=0)
        for seen, _ in enumerate(tg.drive(server, pool, ROUNDS)):
            if seen == cut:
                break
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpoint.save(folder, checkpoint.capture(server, pool.pending()))

        saved = checkpoint.read(folder)
        assert saved is not None
        pool = tg.SimPool(task(), method(mode, **how), fleet())
        server = tg.Server(method(mode, **how), task().init(0), clients=12, seed=0)
        pool.restore(checkpoint.apply(saved, server))
        times = [e.time for e in tg.drive(server, pool, ROUNDS) if isinstance(e.happened, Advanced)]
        assert torch.equal(server.x, whole.x)
        assert times == [row["time"] for row in whole.metrics][-len(times) :]


def test_a_stopped_run_goes_on_and_its_record_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    whole = tg.simulate(method(), task(), fleet(), rounds=ROUNDS, out=tmp_path / "whole")
    run = tg.begin(method(), task(), tg.SimPool(task(), method(), fleet()), rounds=ROUNDS, out=tmp_path / "cut")
    for row in run.go():
        if row["round"] == 17:
            run.stop()
    assert run.summary().status == "stopped"
    again = tg.resume(tmp_path / "cut", method(), task(), fleet())
    for _ in again.go():
        pass
    assert torch.equal(again.x, whole.x)
    assert events(tmp_path / "cut") == events(tmp_path / "whole")
    timeless = {"seconds": 0.0}
    assert again.summary()._replace(**timeless) == whole.summary()._replace(**timeless)
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_finished_run_can_be_prolonged(tmp_path: Path) -> None:
    whole = tg.simulate(method(), task(), fleet(), rounds=ROUNDS)
    tg.simulate(method(), task(), fleet(), rounds=25, out=tmp_path / "run")
    pool = tg.SimPool(task(), method(), fleet())
    longer = tg.resume(tmp_path / "run", method(), task(), pool, rounds=ROUNDS)
    for _ in longer.go():
        pass
    assert torch.equal(longer.x, whole.x)
    spec_json = read_json(tmp_path / "run/spec.json")
    assert [spec_json["run"]["rounds"], spec_json["spec"]["run"]["rounds"]] == [ROUNDS, ROUNDS]
    assert read_history(tmp_path / "run").requested == ROUNDS


def test_buffers_and_batchnorm_survive_a_checkpoint(tmp_path: Path) -> None:
    def norm_task() -> tg.TorchTask:
        def module() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))

        x = torch.from_numpy(np.random.default_rng(0).normal(size=(120, 3))).float()
        data = (x, (x.sum(1) > 0).long())
        return tg.TorchTask(module, loss=torch.nn.functional.cross_entropy, data=tg.shard(data, clients=12), test=data)

    whole = tg.simulate(method(), norm_task(), fleet(), rounds=30)
    run = tg.begin(method(), norm_task(), fleet(), rounds=30, out=tmp_path / "r")
    for row in run.go():
        if row["round"] == 11:
            run.stop()
    again = tg.resume(tmp_path / "r", method(), norm_task(), fleet())
    for _ in again.go():
        pass
    assert torch.equal(again.x, whole.x)
    assert again.server.module_buffers is not None
    assert whole.server.module_buffers is not None
    assert torch.equal(again.server.module_buffers.floats, whole.server.module_buffers.floats)
    assert torch.equal(again.server.module_buffers.ints, whole.server.module_buffers.ints)


class Plain(tg.Task):
    """A task without a text of its own: Python prints its address."""

    clients, parameters = 12, 2

    def init(self, seed: int) -> torch.Tensor:
        return torch.ones(2)

    def batches(self, job: tg.Job) -> Any:
        return iter(range(job.steps or 0))

    def gradient(self, x: torch.Tensor, batch: Any, module_buffers: None) -> tuple[torch.Tensor, torch.Tensor]:
        return x.square().sum() / 2, x.clone()

    def evaluate(self, x: torch.Tensor, module_buffers: None) -> dict[str, float]:
        return {"loss": float(x.square().sum() / 2)}


BEGUN = """
    import sys
    import tardygrad as tg
    from tests.runs.test_resume import Plain, fleet, method

    run = tg.begin(method(), Plain(), fleet(), rounds=8, out=sys.argv[1])
    for row in run.go():
        if row["round"] == 3:
            run.stop()
"""


def test_a_task_without_a_text_of_its_own_is_resumed_in_another_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    begun = Program(textwrap.dedent(BEGUN), str(tmp_path / "run"), env=os.environ | {"PYTHONPATH": str(root)})
    _, errors = begun.communicate(200)
    assert begun.returncode == 0, errors
    recorded = read_json(tmp_path / "run/spec.json")
    assert recorded["described"]["task"] == {"described": "<tests.runs.test_resume.Plain object>"}
    run = tg.resume(tmp_path / "run", method(), Plain(), fleet())
    for _ in run.go():
        pass
    assert torch.equal(run.x, tg.simulate(method(), Plain(), fleet(), rounds=8).x)


KILLS = 25
KILLER = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy as np
    import torch
    import tardygrad as tg
    from tests.runs.test_resume import KILLS, fleet, method, task

    torch.set_num_threads(1)  # a forked child must not meet its parent's thread pool
    folder, how = Path(sys.argv[1]), {"mode": "client", "compensate": True}

    def run(out, said, most):
        pool = tg.SimPool(task(), method(**how), fleet())
        if (out / "spec.json").exists():
            run = tg.resume(out, method(**how), task(), pool)
        else:
            run = tg.begin(method(**how), task(), pool, rounds=400, checkpoint_every=3, evaluate_every=20, out=out)
        for made, _ in enumerate(run.go(), 1):
            os.write(said, b".")
            if made == most:
                time.sleep(600)  # it must not end by itself

    def child(out, most=None):
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                run(out, said, most)
            finally:
                os._exit(0)
        os.close(said)
        return pid, heard

    rng = np.random.default_rng(int(sys.argv[2]))
    for _ in range(KILLS):
        pid, heard = child(folder / "killed", most=15)
        for _ in range(rng.integers(0, 15)):  # rounds; then a moment anywhere in the next, or in a checkpoint
            os.read(heard, 1)
        time.sleep(rng.uniform(0, 0.004))
        os.kill(pid, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the run ended before it could be killed: make it longer"
        os.close(heard)
    for name in ("killed", "whole"):
        os.waitpid(child(folder / name)[0], 0)
"""


def test_a_run_killed_25_times_ends_in_the_same_bits(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    killer = Program(textwrap.dedent(KILLER), str(tmp_path), "7", env=os.environ | {"PYTHONPATH": str(root)})
    _, errors = killer.communicate(200)
    assert killer.returncode == 0, errors
    assert (tmp_path / "killed/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert events(tmp_path / "killed") == events(tmp_path / "whole")


def finished(path: Path) -> Path:
    tg.simulate(method(), task(), fleet(), rounds=30, out=path, checkpoint_every=5)
    return path


def resumed(path: Path, **how: Any) -> tg.Run:
    return tg.resume(path, method(**how), task(), tg.SimPool(task(), method(**how), fleet()))


def test_when_every_checkpoint_is_damaged_it_says_so(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    for state in path.glob("checkpoints/*/state.json"):
        state.write_text("{")
    with pytest.raises(tg.RecordError) as caught:
        resumed(path)
    assert all(
        f"'{path}/checkpoints/{name}/state.json' is damaged" in str(caught.value) for name in ("00000006", "00000005")
    )
    assert str(caught.value).startswith(f"no checkpoint in '{path}/checkpoints' can be used: ")
    assert str(caught.value).endswith(f"Restore it from a copy, or start again: tardygrad run {path} --out NEW")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    with pytest.raises(tg.RecordError, match=r"belongs to another run: its method is M=\d, not M=4\. Resume with"):
        resumed(path, buffer=4)


def test_an_error_of_the_task_is_not_called_a_damaged_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(self: Any, seed: int) -> torch.Tensor:
        raise ValueError("the disk with the weights is not mounted")

    path = finished(tmp_path / "run")
    monkeypatch.setattr(type(task()), "init", init)
    with pytest.raises(ValueError, match="the disk with the weights is not mounted"):
        resumed(path)


def test_only_two_checkpoints_are_kept_and_a_draft_is_never_read(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    assert len(list((path / "checkpoints").iterdir())) == 2
    shutil.copytree(sorted((path / "checkpoints").iterdir())[0], path / "checkpoints/draft")
    (path / "checkpoints/draft/state.json").write_text("{")
    assert resumed(path).server.round == 30
