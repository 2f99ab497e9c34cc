"""The quadratic, logistic regression, digits and the clock."""

import math

import pytest
import torch

from tardygrad.core.algorithm import Server, work
from tardygrad.core.messages import Advanced, Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks import Noise, clock, digits, logistic, quadratic


def trained(task, rounds, *, local_lr, local_steps=5, seed=0):
    """Full synchronisation, by hand."""
    method = sgdclip(
        local_lr=local_lr, local_clip=math.inf, lr=1.0, buffer=task.clients, local_steps=local_steps, mode="sync"
    )
    server = Server(method, task.init(seed), clients=task.clients, seed=seed, module_buffers=task.init_module_buffers())
    jobs = server.dispatch()
    while server.round < rounds:
        jobs += server.receive(work(jobs.pop(0), task, method)).jobs
    return task.evaluate(server.x, server.module_buffers)


def autograd(f, x):
    x = x.clone().requires_grad_()
    f(x).backward()
    return x.grad


def test_the_quadratics_gradient_is_the_gradient_of_its_clients_function():
    task = quadratic(clients=3, dimension=20, condition=100.0, heterogeneity=2.0)
    x = task.init(1)
    for client in range(3):
        (draw,) = task.batches(Job(client, 0, 0, x, 1, None, 0))
        value, g = task.gradient(x, draw, None)
        expected = autograd(lambda y, i=client: 0.5 * (task.h * (y - task.c[i]) ** 2).sum(), x)
        assert torch.allclose(g, expected)
        assert float(value) == pytest.approx(float(0.5 * (task.h * (x - task.c[client]) ** 2).sum()), rel=1e-5)
    assert float(task.h.max() / task.h.min()) == pytest.approx(100.0, rel=1e-4)
    assert float(task.c.std()) == pytest.approx(2.0, rel=0.3)


def test_the_quadratics_scores_are_zero_at_the_optimum_and_there_alone():
    task = quadratic(clients=5, dimension=30, heterogeneity=1.0)
    mean = task.c.mean(0)
    assert task.evaluate(mean, None) == {"loss": pytest.approx(0.0, abs=1e-9), "distance": pytest.approx(0.0, abs=1e-5)}
    start = task.init(0)
    loss = sum(float(0.5 * (task.h * (start - c) ** 2).sum() - 0.5 * (task.h * (mean - c) ** 2).sum()) for c in task.c)
    assert task.evaluate(start, None)["loss"] == pytest.approx(loss / 5, rel=1e-4)
    assert task.evaluate(start, None)["distance"] == pytest.approx(math.sqrt(30), rel=1e-4)
    assert torch.equal(task.init(2), task.init(2))
    assert not torch.equal(task.init(2), task.init(3))


def test_a_batch_of_the_quadratic_is_the_noise_itself():
    noise = Noise("pareto", tail=1.5, scale=0.1)
    task, exact = quadratic(clients=2, noise=noise), quadratic(clients=2)
    one = Job(1, 4, 0, task.init(0), 3, None, 0)
    draws = list(task.batches(one))
    rng = one.stream("noise")
    assert len(draws) == 3
    assert len(list(task.batches(one._replace(steps=None, epochs=2)))) == 2
    for draw, still in zip(draws, exact.batches(one), strict=True):
        assert torch.equal(draw.noise, noise.draw(rng, 100))
        value, g = task.gradient(one.x, draw, None)
        plain, h = exact.gradient(one.x, still, None)
        assert torch.equal(g, h + draw.noise)
        assert torch.equal(value, plain)


def test_logistic_regression_learns_about_as_well_as_its_labels_allow():
    task = logistic(clients=4)
    assert trained(task, 1, local_lr=0.0)["accuracy"] < 0.75
    scores = trained(task, 40, local_lr=0.5)
    assert 0.84 < scores["accuracy"] < 0.92
    assert scores["loss"] < 0.35


def test_digits_are_real_images_split_once_and_for_all():
    a, b = digits(clients=10), digits(clients=7, concentration=0.3, seed=5)
    images, labels = a.data.data
    assert images.shape == (1437, 8, 8)
    assert 0.0 == images.min() < images.max() == 1.0
    assert a.test[0].shape == (360, 8, 8)
    assert torch.equal(a.test[0], b.test[0])
    assert a.test[1].bincount().min() >= 20
    assert set(labels.tolist()) == set(range(10))
    assert sum(len(rows) for rows in b.data.rows) == 1437
    assert not torch.equal(a.init(0), a.init(1))
    assert a.init_module_buffers() is None
    assert digits(clients=4, how="label", labels_per_client=3, batch_size=5).loading.batch_size == 5


def test_the_clock_has_nothing_to_learn():
    task = clock(clients=3, parameters=1000)
    assert task.parameters == 1000
    assert task.init(0).shape == (1000,)
    assert task.init(0).dtype == torch.float32
    assert task.init_module_buffers() is None
    assert task.evaluate(task.init(0), None) == {"loss": 0.0}
    method = sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=2, local_steps=50, compensate=True)
    server = Server(method, task.init(0), clients=3, seed=0)
    updates = [work(one, task, method) for one in server.dispatch()]
    assert [update.steps for update in updates] == [0, 0, 0]
    assert isinstance([server.receive(update).happened for update in updates][1], Advanced)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: quadratic(clients=0), "`clients` must be a whole number, 1 or more, got 0."),
        (lambda: quadratic(clients=1, condition=0.5), "`condition` must be a finite number, 1 or more, got 0.5."),
        (lambda: logistic(clients=1, samples=0), "`samples` must be a whole number, 1 or more, got 0."),
        (lambda: digits(clients=1, heads=3), "`heads` must divide `dim` (32), got 3."),
        (lambda: digits(clients=1, patch=3), "`patch` must divide the images' side (8 pixels), got 3. Use 2 or 4."),
        (lambda: clock(clients=1, parameters=-1), "`parameters` must be a whole number, 0 or more, got -1."),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(call, text):
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value) == text


def test_digits_have_a_perceptron_too():
    task = digits(clients=4, model="mlp")
    assert task.parameters == 64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10
    assert digits(clients=4, model="mlp", dim=8, depth=1).parameters == 64 * 8 + 8 + 8 * 10 + 10
    assert trained(task, 60, local_lr=0.3)["accuracy"] > 0.8
    with pytest.raises(Invalid, match=r"`model` must be one of vit, mlp, got 'cnn'"):
        digits(clients=4, model="cnn")
    with pytest.raises(Invalid, match="`depth` must be"):
        digits(clients=4, model="mlp", depth=0).init(0)
