"""What a TorchTask can be asked for besides: augmented batches, bfloat16, a device."""

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks import TorchTask, shard
from tardygrad.tasks.data.images import Normalize, crop_and_flip
from tardygrad.tasks.nets import ViT

METHOD = sgdclip(local_lr=0.1, local_clip=0.05, lr=1.0, buffer=1, local_steps=3)


def images(rows=40, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (rows, 1, 8, 8)
    return torch.randint(256, shape, generator=g, dtype=torch.uint8), torch.randint(10, (rows,), generator=g)


def make(**settings):
    torch.manual_seed(0)
    module = ViT(dim=8, depth=1, heads=2, patch=4, normalize=Normalize([0.5], [0.25]))
    held = images()
    return TorchTask(module, loss=F.cross_entropy, data=shard(held, clients=2), test=held, batch_size=8, **settings)


def job(task, serial=0):
    return Job(1, serial, 0, task.init(0), 3, None, 0)


class Seen:
    """An augmentation that remembers what it made."""

    def __init__(self):
        self.made = []

    def __call__(self, inputs, rng):
        self.made.append(crop_and_flip(inputs, rng))
        return self.made[-1]


def test_augmented_pixels_belong_to_the_job_and_the_step():
    seen = Seen()
    task = make(augment=seen)
    first, again, other = (work(job(task, serial), task, METHOD).delta for serial in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    a, b, c = seen.made[:3], seen.made[3:6], seen.made[6:]
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(torch.equal(x, y) for x, y in zip(a, c, strict=True))
    assert not torch.equal(first, work(job(task), make(), METHOD).delta)


def test_evaluation_sees_images_as_they_are():
    task = make(augment=lambda inputs, rng: 1 / 0)
    assert task.evaluate(task.init(0), None) == make().evaluate(task.init(0), None)


@pytest.fixture
def plain_bfloat16(monkeypatch):
    """Without oneDNN, which kills the process on virtual machines that report AMX and cannot run it."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("plain_bfloat16")
def test_autocast_computes_in_bfloat16_and_keeps_float32_vectors(monkeypatch):
    plain, cast = make(), make(autocast=True)
    one = job(plain)
    batch = next(plain.batches(one))
    (value, g), (lower, h) = (task.gradient(one.x, batch, None) for task in (plain, cast))
    assert h.dtype == torch.float32
    assert not torch.equal(g, h)
    assert torch.allclose(g, h, rtol=0.2, atol=0.02 * float(g.abs().max()))
    assert float(lower) == pytest.approx(float(value), rel=0.02)
    a, b = plain.evaluate(one.x, None), cast.evaluate(one.x, None)
    assert a["loss"] != b["loss"]
    assert a["loss"] == pytest.approx(b["loss"], rel=0.02)
    dtypes, forward = [], nn.Linear.forward

    def recorded(layer, inputs):
        dtypes.append((output := forward(layer, inputs)).dtype)
        return output

    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", recorded)
        update = work(one, cast, METHOD)
    assert update.delta.dtype == torch.float32
    assert set(dtypes) == {torch.bfloat16}
    assert torch.equal(update.delta, work(one, copy.deepcopy(cast), METHOD).delta)


def test_a_task_can_be_moved():
    task = make()
    moved = task.to("meta")
    tensors = [*moved.data.data, *moved.test, moved.init(0)]
    assert {tensor.device.type for tensor in tensors} == {moved.device.type} == {"meta"}
    assert {tensor.device.type for tensor in (*task.data.data, *task.test, task.init(0))} == {"cpu"}
    assert torch.equal(work(job(task), task.to("cpu"), METHOD).delta, work(job(task), task, METHOD).delta)
    with pytest.raises(Invalid, match="must be one that torch can use here, got 'gpu'"):
        task.to("gpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta?"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(Invalid) as caught:
        make(device=device)
    assert str(caught.value) == f"`device` must be one that torch can use here, got {device!r}. Use 'cpu'."


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, rows):
        return self.layer(rows).tanh()


def small(**settings):
    torch.manual_seed(0)
    held = torch.rand(40, 5), torch.arange(40) % 3
    data = shard(held, clients=2)
    return TorchTask(Perceptron(), loss=F.cross_entropy, data=data, test=held, batch_size=8, **settings)


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_a_compiled_module_has_the_same_gradients(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, compiled = small(), small(compile=True)
    one = job(plain)
    for batch in plain.batches(one):  # the last one is smaller
        (value, g), (other, h) = (task.gradient(one.x, batch, None) for task in (plain, compiled))
        assert float(other) == pytest.approx(float(value), rel=1e-5)
        assert torch.allclose(g, h, rtol=1e-4, atol=1e-6)
    assert compiled.evaluate(one.x, None) == pytest.approx(plain.evaluate(one.x, None), rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert torch.equal(work(one, compiled, METHOD).delta, work(one, copy.deepcopy(compiled), METHOD).delta)
    with pytest.raises(Invalid, match=r"accumulate=1 and compile=False\. Compute them one by one"):
        compiled.gradients([(one.x, batch, None)])
