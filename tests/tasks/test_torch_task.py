"""TorchTask computes what a plain torch loop computes, to the bit, wherever and however often it is called."""

import copy
import doctest
import math
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tardygrad.cli.main import main
from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks import Noise, TorchTask, shard
from tardygrad.tasks.digits import ViT

ROOT = Path(__file__).parents[2]
LR, CLIP = 0.1, 0.05
METHOD = sgdclip(local_lr=LR, local_clip=CLIP, lr=1.0, buffer=1, local_steps=1)  # a job brings its own K


def data(rows=50, features=7, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, features) if isinstance(features, int) else (rows, *features)
    return torch.randn(shape, generator=g), torch.randint(classes, (rows,), generator=g)


def mlp():
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))


def make(module=None, held=None, clients=3, **settings):
    held = held or data()
    return TorchTask(module or mlp(), loss=F.cross_entropy, data=shard(held, clients=clients), test=held, **settings)


def job(task, *, client=1, serial=0, steps=5, epochs=None, seed=3):
    return Job(client, serial, 0, task.init(seed), None if epochs else steps, epochs, seed, task.init_module_buffers())


def rows_of(task, job, batch_size):
    """The batching rule, written again: a new permutation of the client's rows for every pass."""
    rng, mine = job.stream("batches"), task.data.rows[job.client]
    done = 0
    for _ in range(job.epochs or job.steps):
        order = mine[torch.from_numpy(rng.permutation(len(mine)))]
        for start in range(0, len(mine), batch_size):
            if job.steps is not None and done == job.steps:
                return
            done += 1
            yield order[start : start + batch_size]


def naive(module, task, job, batch_size):
    """Deep copy, torch's own gradients, clip and step parameter by parameter."""
    model = copy.deepcopy(module).train()
    inputs, target = task.data.data
    losses = []
    for rows in rows_of(task, job, batch_size):
        model.zero_grad()
        loss = F.cross_entropy(model(inputs[rows]), target[rows])
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= p.grad.clamp(-CLIP, CLIP) * LR
    return model, sum(losses) / len(losses)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(7, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


MODULES = {
    "perceptron": (mlp, 7, 3),
    "transformer": (partial(ViT, dim=16, depth=2, heads=2, patch=2), (8, 8), 10),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)),
        (1, 8, 8),
        3,
    ),
    "recurrent": (Recurrent, (4, 7), 3),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("how", [{"steps": 1}, {"steps": 7}, {"epochs": 2}])
def test_local_steps_are_bit_identical_to_a_plain_torch_loop(name, how):
    build, features, classes = MODULES[name]
    module = build()
    task = make(module, data(features=features, classes=classes), batch_size=6)
    job_ = job(task, **how)
    update = work(job_, task, METHOD)
    after, loss = naive(module, task, job_, 6)
    assert torch.equal(update.delta, nn.utils.parameters_to_vector(after.parameters()).detach() - job_.x)
    assert update.delta.abs().max() > 0
    assert update.loss == pytest.approx(loss, rel=1e-6)


def test_consecutive_jobs_from_different_vectors_do_not_see_each_other():
    task = make()
    jobs = [job(task, client=i, serial=s)._replace(x=task.init(0) + 0.1 * i + s) for i in range(3) for s in range(2)]
    alone = [work(one, make(task._template), METHOD).delta for one in jobs]
    task.evaluate(jobs[0].x, None)
    for one, expected in zip(jobs, alone, strict=True):
        assert torch.equal(work(one, task, METHOD).delta, expected)
        task.evaluate(jobs[0].x, None)


def test_the_users_module_is_never_changed():
    module = mlp().eval()
    before, pointers = copy.deepcopy(module.state_dict()), [p.data_ptr() for p in module.parameters()]
    task = make(module)
    work(job(task), task, METHOD)
    task.evaluate(task.init(0), None)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert [p.data_ptr() for p in module.parameters()] == pointers
    assert all(p.grad is None for p in module.parameters())
    assert not module.training
    with torch.no_grad():
        module[0].weight.zero_()  # and the task does not follow later changes
    assert torch.equal(task.init(0)[:91], before["0.weight"].flatten())


def test_a_factory_starts_from_the_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    task = make(mlp)
    assert torch.equal(task.init(7), task.init(7))
    assert torch.equal(task.init(0), make(mlp).init(0))
    assert not torch.equal(task.init(0), task.init(1))
    assert torch.equal(state, torch.get_rng_state())


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 30), batch_size=st.integers(1, 40), epochs=st.integers(1, 3), steps=st.integers(1, 20))
def test_a_pass_sees_every_row_once_and_steps_are_counted(rows, batch_size, epochs, steps):
    task = make(held=data(rows), clients=1, batch_size=batch_size)
    whole = list(task.batches(job(task, client=0, epochs=epochs)))
    seen = torch.cat([batch.data[0][0] for batch in whole])
    assert len(whole) == epochs * math.ceil(rows / batch_size)
    every = sorted(task.data.data[0].tolist())
    assert all(sorted(part.tolist()) == every for part in seen.split(rows))
    counted = list(task.batches(job(task, client=0, steps=steps)))
    assert len(counted) == steps
    assert all(1 <= len(batch.data[0][0]) <= min(batch_size, rows) for batch in counted)
    assert len({batch.key for batch in counted}) == steps


def test_noise_is_added_to_every_gradient_and_repeats_with_the_job():
    module = mlp()
    plain, noisy = make(module), make(module, noise=Noise("student", tail=1.5, scale=0.1))
    x, one = plain.init(0), job(plain)
    drawn = one.stream("noise")
    for a, b in zip(plain.batches(one), noisy.batches(one), strict=True):
        g = plain.gradient(x, a, None)[1] + noisy.noise.draw(drawn, plain.parameters)
        assert torch.equal(noisy.gradient(x, b, None)[1], g)
    assert torch.equal(work(one, noisy, METHOD).delta, work(one, noisy, METHOD).delta)
    assert not torch.equal(work(one, noisy, METHOD).delta, work(one._replace(serial=1), noisy, METHOD).delta)


def test_evaluation_is_the_mean_over_rows_whatever_the_batch():
    module, held = mlp(), data(50)
    with torch.no_grad():
        output = module(held[0])
    loss, accuracy = F.cross_entropy(output, held[1]).item(), (output.argmax(1) == held[1]).double().mean().item()
    for size in (1, 7, 50, 1024):
        scores = make(module, held, evaluate_batch=size).evaluate(make(module).init(0), None)
        assert scores == {"loss": pytest.approx(loss, rel=1e-5), "accuracy": pytest.approx(accuracy)}


def test_regression_has_no_accuracy_and_several_inputs_are_passed_on():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(2.0))

        def forward(self, a, b):
            return self.w * a + b

    held = (torch.ones(6), torch.arange(6.0), torch.zeros(6))
    task = TorchTask(Pair(), loss=F.mse_loss, data=shard(held, clients=2), test=held)
    assert task.evaluate(task.init(0), None) == {"loss": pytest.approx(sum((2 + i) ** 2 for i in range(6)) / 6)}
    assert work(job(task), task, METHOD).steps == 5


@pytest.mark.parametrize("normalised", [False, True])
def test_the_network_of_a_vector_answers_as_the_task_does(normalised):
    layers = [nn.Linear(7, 13), nn.BatchNorm1d(13) if normalised else nn.Identity(), nn.Dropout(0.5), nn.Linear(13, 3)]
    task = make(nn.Sequential(*layers))
    before = task.init(0).clone()
    one = job(task, steps=20)
    update = work(one, task, METHOD)
    x = one.x + update.delta
    network = task.module(x, update.module_buffers)
    inputs, labels = task.test
    assert not network.training
    accuracy = float((network(inputs).argmax(1) == labels).double().mean())
    assert accuracy == task.evaluate(x, update.module_buffers)["accuracy"]
    expected, kept = network(inputs).detach(), x.clone()
    x += 1.0  # the network has memory of its own
    if update.module_buffers:
        update.module_buffers.floats.add_(1.0)
    assert torch.equal(network(inputs), expected)
    with torch.no_grad():
        network[0].weight.zero_()
    assert torch.equal(
        task.module(kept, one.module_buffers and task.init_module_buffers())[0].weight.flatten(), kept[:91]
    )
    assert torch.equal(task.init(0), before)
    assert [name for name, _ in network.named_parameters()] == [name for name, _ in task._template.named_parameters()]


def test_a_network_needs_a_vector_of_its_length_and_its_buffers():
    with pytest.raises(Invalid, match=r"x must be a flat float32 tensor of length 146, got torch.float32 \[3\]"):
        make().module(torch.zeros(3))
    task = make(nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3)))
    with pytest.raises(Invalid, match="this module has buffers, got none"):
        task.module(task.init(0))


def test_the_docs_say_how_to_use_the_network_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "digits", "run.rounds=1", "run.evaluate_every=0"])
    (code,) = re.findall(r"```pycon\n(.*?)```", (ROOT / "docs/tasks.md").read_text("utf-8"), re.DOTALL)
    example = doctest.DocTestParser().get_doctest(code, {}, "docs/tasks.md", None, 0)
    assert doctest.DocTestRunner().run(example).failed == 0


def test_two_threads_get_the_same_bits_as_one():
    task = make(ViT(dim=16, depth=1, heads=2, patch=2), data(features=(8, 8), classes=10), batch_size=6)
    jobs = [job(task, client=i % 3, serial=i, steps=10)._replace(x=task.init(0) + 0.01 * i) for i in range(12)]
    alone = [work(one, copy.deepcopy(task), METHOD).delta for one in jobs]
    together = Barrier(2, timeout=30)

    def share(mine):
        together.wait()
        return [work(one, task, METHOD).delta for one in mine]

    with ThreadPoolExecutor(2) as pool:
        even, odd = pool.map(share, (jobs[::2], jobs[1::2]))
    assert all(torch.equal(a, b) for a, b in zip(even, alone[::2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(odd, alone[1::2], strict=True))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))])  # noqa: S301
@pytest.mark.parametrize("module", [mlp, mlp()], ids=["factory", "module"])
def test_a_used_task_can_be_copied_and_pickled(again, module):
    task = make(module, noise=Noise())
    one = job(task)
    delta = work(one, task, METHOD).delta
    copied = again(task)
    assert torch.equal(copied.init(4), task.init(4))
    assert torch.equal(work(one, copied, METHOD).delta, delta)
    assert copied.evaluate(one.x, None) == task.evaluate(one.x, None)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: make(batch_size=0), "`batch_size` must be a whole number, 1 or more, got 0."),
        (lambda: make(module_buffers="keep"), "`module_buffers` must be one of average, refuse, got 'keep'."),
        (lambda: make(3), "`module` must be a module, or a function that returns one, got int."),
        (
            lambda: TorchTask(mlp(), loss=nn.CrossEntropyLoss, data=shard(data(), clients=2)),
            "`loss` must be a function of (output, target) or of (module, batch), got the class CrossEntropyLoss. "
            "Use CrossEntropyLoss().",
        ),
        (
            lambda: TorchTask(mlp(), loss=F.cross_entropy, data=data()),
            "`data` must say which rows each client has, got tensors. Split it with tg.shard(data, clients=...), "
            "or give a list with a dataset for each client.",
        ),
        (
            lambda: TorchTask(mlp(), loss=F.cross_entropy, data=shard(data(), clients=2)).evaluate(
                torch.empty(0), None
            ),
            "evaluating needs a test set, got none. Give the task test=(inputs..., target).",
        ),
        (
            lambda: make().evaluate(torch.zeros(5), None),
            "x must be a flat float32 tensor of length 146, got torch.float32 [5].",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(call, text):
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value) == text


def test_a_loss_without_reduction_and_a_fickle_factory_are_refused():
    held = data()
    task = TorchTask(mlp(), loss=partial(F.cross_entropy, reduction="none"), data=shard(held, clients=1))
    with pytest.raises(Invalid, match=r"must return a tensor with one number, got shape \[32\]. Use reduction='mean'."):
        work(job(task, client=0), task, METHOD)
    widths = iter([3, 4])
    task = make(lambda: nn.Linear(7, next(widths)))
    with pytest.raises(Invalid, match="must return the same shapes every time, got others for seed 1"):
        task.init(1)
