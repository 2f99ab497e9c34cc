"""TinyViT on CIFAR-10: the head on cached features, the last stages, or all, and nothing else moves."""

import math

import pytest
import torch

from experiments.tasks import cifar10 as module
from experiments.tasks import tinyvit
from experiments.tasks.cifar10 import Prepared, cifar10
from experiments.tests.test_tinyvit import folder as tiny  # noqa: F401
from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tests.tasks.picture_files import RGB, striped, write_binary

METHOD = sgdclip(local_lr=0.05, local_clip=math.inf, lr=1.0, buffer=1, local_steps=2)


@pytest.fixture
def build(tmp_path, tiny):  # noqa: F811
    write_binary(tmp_path / "color", striped(24, RGB), striped(10, RGB))
    given = {"clients": 2, "data": str(tmp_path / "color"), "cache": str(tmp_path / "cache"), "batch_size": 4}
    return lambda **settings: cifar10(**given | {"pretrained": str(tiny), "resize": 16} | settings)


def step(task):
    """The vector before and after a job."""
    job = Job(0, 0, 0, task.init(0), 2, None, 0, task.init_module_buffers())
    return job.x, work(job, task, METHOD)


def test_a_head_is_trained_on_features_that_are_computed_once(build, tiny, monkeypatch):  # noqa: F811
    loaded, real = [], tinyvit.load
    monkeypatch.setattr(module.tinyvit, "load", lambda folder: loaded.append(folder) or real(folder))
    task = build()
    width = task.data.data[0].shape[1]
    assert repr(task) == f"TorchTask(Linear, parameters={10 * width + 10}, clients=2)"
    assert len(loaded) == 2  # to train on, and to test on
    assert torch.equal(build(train="head").data.data[0], task.data.data[0])
    assert len(loaded) == 2
    build(resize=32)
    build(train_rows=8)
    assert len(loaded) == 5  # the ten to test on were there
    features, test = task.data.data[0], task.test[0]
    network = torch.nn.Sequential(Prepared(16), real(tiny)).eval()
    with torch.no_grad():
        raw, other = (network(torch.from_numpy(striped(rows, RGB)[0])) for rows in (24, 10))
    mean, deviation = raw.mean(0), raw.std(0, correction=0)
    alive = features.std(0, correction=0) > 0.5
    assert alive.sum() >= 10
    assert torch.equal(features[:, ~alive], torch.zeros(24, int((~alive).sum())))  # the same for all images
    assert torch.allclose(features[:, alive], ((raw - mean) / deviation)[:, alive], atol=0.02)
    assert torch.allclose(test[:, alive], ((other - mean) / deviation)[:, alive], atol=0.02)


@pytest.mark.parametrize(
    ("train", "first"),
    [
        ("all", "backbone.patch_embed.seq.0.c.weight"),
        ("last-4", "backbone.layers.0."),
        ("last-1", "backbone.layers.3."),
    ],
)
def test_what_is_trained_is_the_vector_and_the_rest_is_frozen(train, first, build):
    task = build(train=train, augment=True)
    network = task._template
    names = [name for name, p in network.named_parameters() if p.requires_grad]
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    assert first in names[0]
    assert [*frozen, *names] == [name for name, _ in network.named_parameters()]
    assert bool(frozen) == (train != "all")
    before = {name: p.clone() for name, p in network.named_parameters()}
    x, update = step(task)
    assert update.delta.abs().max() > 0
    assert torch.equal(update.delta, step(task)[1].delta)  # augmentation is drawn from the job's stream
    after = dict(task._views().module.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in frozen)
    size = network.head.weight.numel() + 10
    assert not torch.equal(task.init(1)[-size:], x[-size:])  # a fresh head
    assert torch.equal(task.init(1)[:-size], x[:-size])  # on the same backbone


@pytest.mark.parametrize("train", ["last-1", "last-2", "last-4"])
def test_the_last_stages_learn_on_what_enters_them_as_in_the_whole_network(train, build):
    task, whole = build(train=train), build(train=train, augment=True)  # which is not computed once
    whole.augment = None
    assert task.data.data[0].is_floating_point()
    x = task.init(3)
    assert torch.equal(x, whole.init(3))
    job = Job(1, 0, 0, x, 3, None, 0)
    for inputs, images in zip(task.batches(job), whole.batches(job), strict=True):
        (loss, g), (same, h) = task.gradient(x, inputs, None), whole.gradient(x, images, None)
        assert torch.allclose(loss, same, atol=1e-5)
        assert torch.allclose(g, h, atol=1e-5)
        assert g.abs().max() > 1e-3
        x = x - g
    assert task.evaluate(x, None) == pytest.approx(whole.evaluate(x, None), abs=1e-5)
    assert torch.allclose(task.module(x)(whole.test[0]), whole.module(x)(whole.test[0]), atol=1e-5)  # on pixels


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"train": "last-5"}, "`train` must be one of head, last-1, last-2, last-3, last-4, all, got 'last-5'."),
        ({"augment": True}, "`augment` must be false with train='head', whose features are computed once, got true."),
        (
            {"train": "last-1", "channels_last": True},
            "`channels_last` needs train='all', got train='last-1'. Leave out one of the two.",
        ),
        ({"resize": 60}, "`resize` must be a multiple of 16, got 60. Use 64."),
        (
            {"pretrained": "no/folder"},
            "`pretrained` must be a folder with config.json and model.safetensors, got 'no/folder', which is not a "
            "folder.",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(settings, text, build):
    with pytest.raises(Invalid) as caught:
        build(**settings)
    assert str(caught.value) == text
