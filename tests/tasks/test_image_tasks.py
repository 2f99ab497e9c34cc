"""Fashion-MNIST, MNIST and CIFAR-10: the same settings for all, the same rows for everyone, and they are learnt."""

import math
import sys
import types

import pytest
import torch

from tardygrad.core.algorithm import Server, work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks import Noise, cifar10, fashion, mnist
from tardygrad.tasks.nets import CNN, ViT
from tests.tasks.picture_files import GRAY, RGB, pictures, striped, write_binary, write_idx, write_parquet


@pytest.fixture(scope="module")
def gray(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gray")
    write_idx(folder, striped(400, GRAY, 0), striped(100, GRAY, 1))
    return str(folder)


@pytest.fixture(scope="module")
def color(tmp_path_factory):
    folder = tmp_path_factory.mktemp("color")
    write_binary(folder, striped(400, RGB, 0), striped(100, RGB, 1))
    return str(folder)


def trained(task, rounds, local_lr, **settings):
    """Full synchronisation, by hand."""
    settings = {"local_steps": 5} | settings
    method = sgdclip(local_lr=local_lr, local_clip=math.inf, lr=1.0, buffer=task.clients, mode="sync", **settings)
    server = Server(method, task.init(0), clients=task.clients, seed=0)
    jobs = server.dispatch()
    while server.round < rounds:
        jobs += server.receive(work(jobs.pop(0), task, method)).jobs
    return task.evaluate(server.x, None)


def job(task, serial=0, **how):
    steps, epochs = how.get("steps"), how.get("epochs")
    return Job(0, serial, 0, task.init(0), steps, epochs, 0)


def test_images_are_kept_as_bytes_and_split_among_clients(gray, color):
    for task, shape in ((fashion(clients=8, data=gray), GRAY), (cifar10(clients=8, data=color), RGB)):
        assert task.data.data[0].shape == (400, *shape)
        assert task.data.data[0].dtype == torch.uint8
        assert task.test[0].shape == (100, *shape)
        assert sum(len(rows) for rows in task.data.rows) == 400
        assert isinstance(task._template, ViT)
        assert task.loading.batch_size == 32
        assert task.init_module_buffers() is None
    uneven = fashion(clients=8, data=gray, how="label", labels_per_client=1, batch_size=5, noise=Noise())
    assert all(len(uneven.data.data[1][rows].unique()) == 1 for rows in uneven.data.rows)
    assert (uneven.loading.batch_size, uneven.noise) == (5, Noise())
    assert repr(mnist(clients=2, data=gray)) == "TorchTask(ViT, parameters=19594, clients=2)"


@pytest.mark.parametrize("model", ["vit", "cnn"])
def test_a_network_sees_normalised_pixels(model, color):
    task = cifar10(clients=2, data=color, model=model, dim=8)
    assert isinstance(task._template, ViT if model == "vit" else CNN)
    seen = task._template.normalize(task.data.data[0])
    pixels = task.data.data[0].double() / 255
    assert torch.allclose(seen[:, 0].double(), (pixels[:, 0] - 0.49139968) / 0.24703223, atol=1e-5)
    assert torch.allclose(seen[:, 2].double(), (pixels[:, 2] - 0.44653091) / 0.26158784, atol=1e-5)
    assert not torch.equal(task.init(0), task.init(1))


@pytest.mark.parametrize(("model", "rate"), [("vit", 0.1), ("cnn", 0.1)])
def test_images_are_learnt(model, rate, gray):
    task = fashion(clients=2, data=gray, model=model, dim=8, depth=1, heads=2, patch=14)
    assert trained(task, 1, 0.0)["accuracy"] < 0.3
    assert trained(task, 30, rate)["accuracy"] > 0.7


def test_augmented_images_are_drawn_from_the_jobs_stream(color):
    settings = {"clients": 2, "data": color, "dim": 8, "depth": 1, "patch": 8}
    plain, moved = cifar10(**settings), cifar10(augment=True, **settings)
    method = sgdclip(local_lr=0.1, local_clip=math.inf, lr=1.0, buffer=1, local_steps=2)
    first, again, other = (work(job(moved, serial, steps=2), moved, method).delta for serial in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, work(job(plain, steps=2), plain, method).delta)
    x = plain.init(0)
    assert plain.evaluate(x, None) == moved.evaluate(x, None)


def test_a_subset_to_test_on_is_the_same_for_every_seed_and_one_to_train_on_is_not(gray):
    a, b = (fashion(clients=2, data=gray, test_rows=30, train_rows=100, seed=seed) for seed in (0, 1))
    assert torch.equal(a.test[0], b.test[0])
    assert (len(a.test[1]), len(a.data.data[1])) == (30, 100)
    assert not torch.equal(a.data.data[0], b.data.data[0])
    again = fashion(clients=3, data=gray, test_rows=30, train_rows=100)
    assert torch.equal(again.data.data[0], a.data.data[0])
    whole = fashion(clients=2, data=gray)
    rows = {image.numpy().tobytes(): int(label) for image, label in zip(*whole.test, strict=True)}
    assert all(rows[image.numpy().tobytes()] == int(label) for image, label in zip(*a.test, strict=True))


def test_the_hub_is_asked_for_the_data_set(tmp_path, monkeypatch):
    write_parquet(tmp_path / "plain_text", pictures(20, RGB), pictures(10, RGB))
    asked = []

    def fetch(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fetch))
    task = cifar10(clients=2, data="hub", cache=str(tmp_path / "cache"))
    assert len(task.data.data[1]) == 20
    assert asked == [("uoft-cs/cifar10", {"repo_type": "dataset", "allow_patterns": ["*.parquet"]})]
    assert list((tmp_path / "cache").glob("images-*.safetensors"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"test_rows": 0}, "`test_rows` must be a whole number, 1 or more, got 0."),
        ({"train_rows": 401}, "`train_rows` must be at most the number of images (400), got 401."),
        ({"model": "mlp"}, "`model` must be one of vit, cnn, got 'mlp'."),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(settings, text, gray):
    with pytest.raises(Invalid) as caught:
        fashion(**({"clients": 2, "data": gray} | settings))
    assert str(caught.value) == text
