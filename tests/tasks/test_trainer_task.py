"""A task with a training loop of its own: the same update as from local steps; what cannot hold is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.errors import is_of_own_code

CLIENTS = 4
INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS.sum(1) > 0).long()
ROWS = tuple(torch.arange(40).chunk(CLIENTS))


def network(norm: bool = False) -> nn.Module:
    torch_state = torch.get_rng_state()
    module = nn.Sequential(nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh(), nn.Linear(4, 2))
    torch.set_rng_state(torch_state)
    return module


def train(module: nn.Module, job: Job) -> tg.LocalResult:
    """Plain SGD on whole batches of the client's rows."""
    optimizer, squares, total = torch.optim.SGD(module.parameters(), lr=0.1), tg.SquaredMoves(module), 0.0
    rows = ROWS[job.client]
    for _ in range(job.steps or 0):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(INPUTS[rows]), LABELS[rows])
        loss.backward()
        optimizer.step()
        squares.add()
        total += loss.item()
    return tg.LocalResult(total / (job.steps or 1), squares=squares)


def own(module: nn.Module, loop: Any = train, **how: Any) -> tg.TrainerTask:
    settings = {"train": loop, "clients": CLIENTS, "test": (INPUTS, LABELS), "loss": nn.functional.cross_entropy}
    return tg.TrainerTask(module, **(settings | how))


def plain(module: nn.Module) -> tg.TorchTask:
    data = tg.Shards((INPUTS, LABELS), ROWS)
    return tg.TorchTask(module, data=data, test=(INPUTS, LABELS), loss=nn.functional.cross_entropy, batch_size=10)


def method(*, steps: bool, **how: Any) -> tg.Method:
    given = {"lr": 1.0, "clip": 0.05, "buffer": 2, "local_steps": 3, "mode": "client", "compensate": True} | how
    return tg.clip2(**given, **({"local_lr": 0.1, "local_clip": math.inf} if steps else {}))


@pytest.mark.parametrize("norm", [False, True])
def test_the_loop_of_the_method_written_by_hand_gives_its_run(norm: bool) -> None:
    module, fleet = network(norm), tg.Fleet.paper(clients=CLIENTS)
    ours = tg.simulate(method(steps=True), plain(module), fleet, rounds=12, evaluate_every=6)
    theirs = tg.simulate(method(steps=False), own(module), fleet, rounds=12, evaluate_every=6)
    assert torch.allclose(ours.x, theirs.x, atol=1e-5)
    assert [row["loss"] for row in theirs.metrics] == pytest.approx([row["loss"] for row in ours.metrics], rel=1e-4)
    assert theirs.summary().updates == ours.summary().updates
    a, b = (run.server.module_buffers for run in (ours, theirs))
    assert (a is None) == (b is None) == (not norm)
    if a and b:
        assert torch.allclose(a.floats, b.floats, atol=1e-5)


def test_a_job_repeats_whatever_random_numbers_the_loop_draws() -> None:
    def loop(module: nn.Module, job: Job) -> float:
        with torch.no_grad():
            for p in module.parameters():
                p += torch.rand_like(p)
        return 1.0

    task, state = own(network(), loop), torch.get_rng_state()
    one = Job(1, 0, 0, task.init(0), 3, None, seed=0)
    first, again = (tg.work(one, task, method(steps=False, compensate=False)) for _ in range(2))
    other = tg.work(one._replace(serial=1), task, method(steps=False, compensate=False))
    assert torch.equal(first.delta, again.delta)
    assert not torch.equal(first.delta, other.delta)
    assert torch.equal(state, torch.get_rng_state())
    assert (first.steps, first.loss) == (3, 1.0)


def test_what_a_loop_attaches_to_the_module_ends_with_the_job() -> None:
    def loop(module: Any, job: Job) -> None:
        assert not hasattr(module, "attached")
        module.attached = True

    task = own(network(), loop)
    for serial in range(2):
        update = tg.work(Job(0, serial, 0, task.init(0), 1, None, seed=0), task, method(steps=False, compensate=False))
        assert math.isnan(update.loss)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: method(steps=True), "so the method must not make local steps. Leave out `local_lr`."),
        (lambda: tg.fedavg(buffer=2, local_steps=3, keep=True), "Leave out `keep`, which belongs in the loop"),
        (
            lambda: tg.dcasgd(local_lr=0.1, local_steps=3),
            "DC-ASGD-c needs them to estimate the curvature. Use clip2 with compensate=True.",
        ),
    ],
)
def test_a_method_with_local_steps_is_refused_before_the_run(made: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text):
        tg.simulate(made(), own(network()), tg.Fleet.paper(clients=CLIENTS), rounds=1)


def test_a_method_without_local_steps_needs_a_task_with_its_own() -> None:
    with pytest.raises(tg.Invalid, match="Clip² needs `local_lr` for this task"):
        tg.simulate(method(steps=False), plain(network()), tg.Fleet.paper(clients=CLIENTS), rounds=1)


def test_compensation_needs_the_squares_of_the_moves() -> None:
    task = own(network(), lambda module, job: 0.0)
    with pytest.raises(tg.WorkFailed, match=r"`compensate` needs the squares of the local moves.*tg\.SquaredMoves"):
        tg.simulate(method(steps=False), task, tg.Fleet.paper(clients=CLIENTS), rounds=1)


@pytest.mark.parametrize(
    "make",
    [tg.fedavg, tg.fedavgm, tg.fedadam, tg.fedyogi, tg.fedbuff, tg.fedasync, tg.diloco, tg.sgdclip, tg.tailopt],
)
def test_methods_may_leave_the_steps_to_the_task(make: Any) -> None:
    left = make(lr=0.1, buffer=2, local_steps=1, mode="client")
    assert not left.has_local_steps
    tg.simulate(left, own(network()), tg.Fleet.paper(clients=CLIENTS), rounds=1, evaluate_every=0)


def test_what_a_loop_returns_is_checked() -> None:
    def loop(module: Any, job: Job) -> Any:
        squares = tg.SquaredMoves(module)
        module[0].weight.data += 1
        if job.serial == 4:
            module.register_buffer("more", torch.zeros(2))
        wrong: list[Any] = [squares, torch.ones(task.parameters).half(), "x"]
        return [[0.5], *(tg.LocalResult(squares=value) for value in wrong), None, tg.LocalResult(steps=-1)][job.serial]

    task = own(network(), loop)
    squares = rf"SquaredMoves, or a float32 tensor with shape \[{task.parameters}\], got "
    texts = (
        "must return the mean loss as a number, a LocalResult or None, got list",
        "call its `add` after each",
        rf"{squares}torch.float16",
        rf"{squares}str",
        "must not add, remove, freeze, reorder or resize parameters or persistent buffers",
        "`steps` must be a whole number, 0 or more, got -1",
    )
    for serial, text in enumerate(texts):
        with pytest.raises(tg.Invalid, match=text):
            tg.work(Job(0, serial, 0, task.init(0), 1, None, seed=0), task, method(steps=False))


def test_compiled_code_of_packages_is_not_the_users() -> None:
    for file, is_own in (("_result_cy.py", False), (__file__, True), ("/tmp/ipykernel_1/2.py", True)):
        with pytest.raises(ZeroDivisionError) as caught:
            exec(compile("1 / 0", file, "exec"))  # noqa: S102
        error = caught.value.with_traceback(caught.tb.tb_next)  # without the frame of this test
        assert is_of_own_code(error) is is_own


def test_a_loop_that_changes_the_parameters_shapes_is_refused() -> None:
    def loop(module: Any, job: Job) -> None:
        module[0] = nn.Linear(3, 5)

    task = own(network(), loop)
    with pytest.raises(tg.Invalid, match="must not add, remove, freeze, reorder or resize parameters"):
        tg.work(Job(0, 0, 0, task.init(0), 1, None, seed=0), task, method(steps=False))
    with pytest.raises(tg.Invalid, match="`train` must be a function of"):
        own(network(), loop=3)
