"""CIFAR-10 with TinyViT, pretrained: the head on features that are computed once, the last stages, or all of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.tasks import tinyvit
from experiments.tasks.tinyvit import TinyViT
from tardygrad.errors import Invalid, check_integer
from tardygrad.tasks.data.files import Key, Tensors, cached
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import find_model
from tardygrad.tasks.data.images import CLASSES, Labelled, Normalize, crop_and_flip
from tardygrad.tasks.data.sharding import shard
from tardygrad.tasks.image_task import CIFAR10
from tardygrad.tasks.torch_task import TorchTask

TRAINED = {"head": 4, "last-1": 3, "last-2": 2, "last-3": 1, "last-4": 0, "all": -1}
"""The first stage that is trained."""


class Prepared(nn.Module):
    """Prepares pixels for a pretrained network: normalised and resized."""

    def __init__(self, side: int, *, channels_last: bool = False) -> None:
        super().__init__()
        self.normalize, self.side = Normalize(tinyvit.MEAN, tinyvit.STD, channels_last=channels_last), side

    def forward(self, pixels: Tensor) -> Tensor:
        return F.interpolate(self.normalize(pixels), size=(self.side, self.side), mode="bilinear", align_corners=False)


class Tuned(nn.Module):
    """TinyViT on pixels, or its last stages on cached inputs, and a head; it is alike in training and evaluation."""

    def __init__(self, prepared: Prepared | None, backbone: TinyViT, head: nn.Linear) -> None:
        super().__init__()
        self.prepared, self.backbone, self.head = prepared, backbone, head

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.backbone(*map(self.prepared, inputs) if self.prepared else inputs))


def tuned(folder: Path, side: int, first: int, *, cut: bool = False, channels_last: bool = False) -> Tuned:
    """A network to fine-tune: a head from torch's generator, and the backbone, whole or `cut` to its trained stages.

    Args:
        first: the first stage that is trained; -1 trains all.
    """
    backbone = tinyvit.load(folder)
    if first >= 0:
        backbone.patch_embed.requires_grad_(False)
        backbone.layers[:first].requires_grad_(False)
    if cut:
        backbone.patch_embed, backbone.layers = nn.Sequential(), backbone.layers[first:]
    prepared = None if cut else Prepared(side, channels_last=channels_last)
    return Tuned(prepared, backbone, nn.Linear(backbone.features, CLASSES)).train()


def stage_inputs(folder: Path, side: int, first: int, pixels: Tensor, device: str, cache: str | None) -> list[Tensor]:
    """Inputs of the first stage that is trained, computed once for the same images and weights."""

    @torch.no_grad()
    def make() -> Tensors:
        prepared, backbone = Prepared(side).to(device), tinyvit.load(folder).to(device)
        found = [backbone.before(first, prepared(part.to(device))) for part in torch.split(pixels, 32)]
        maps, means = zip(*found, strict=True)
        return {"0": torch.cat(maps), "1": torch.cat(means)}

    return list(cached("states", make, *_key(folder, side), str(first), pixels, folder=cache).values())


def features(folder: Path, side: int, pixels: Tensor, device: str, cache: str | None) -> Tensor:
    """The backbone's features of images, one row each; computed once for the same images and weights."""

    @torch.no_grad()
    def make() -> Tensors:
        network = nn.Sequential(Prepared(side), tinyvit.load(folder)).to(device).eval()
        return {"features": torch.cat([network(part.to(device)).cpu() for part in torch.split(pixels, 50)])}

    return cached("features", make, *_key(folder, side), pixels, folder=cache)["features"]


def _key(folder: Path, side: int) -> list[Key]:
    """Everything a backbone's outputs depend on, except the images."""
    return [str(side), *sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))]


def cifar10(
    *,
    clients: int,
    data: str,
    pretrained: str,
    train: str = "head",
    resize: int = 64,
    batch_size: int = 32,
    augment: bool = False,
    train_rows: int | None = None,
    test_rows: int | None = None,
    validation_rows: int = 0,
    score_on: ScoreOn = "test",
    cache: str | None = None,
    device: str = "cpu",
    autocast: bool = False,
    compile: bool = False,
    channels_last: bool = False,
    seed: int = 0,
) -> TorchTask:
    """CIFAR-10, split over clients, and TinyViT with a new head.

    Args:
        clients: number of clients, N.
        data: the folder with the images, as `tasks.cifar10` takes it.
        pretrained: the folder with TinyViT's config.json and model.safetensors.
        train: the "head", the "last-N" stages and the head, or "all". Outputs of frozen stages are computed once,
            except for "last-N" with `augment`.
        resize: side in pixels of the network's input.
        batch_size: rows per batch; the last batch of an epoch may be smaller.
        augment: whether to crop and flip training images at random, drawn from the job's stream.
        train_rows: how many training images to use, drawn with `seed`; None is all.
        test_rows: how many test images to use, the same for every seed; None is all.
        validation_rows: how many of the training images to set apart, the same for every seed of the run.
        score_on: evaluate on the "test" images, or on the "validation" images, to choose settings by.
        cache: the folder for decoded images and features; None is ~/.cache/tardygrad.
        device: the torch device of data, vectors and module.
        autocast: run forward passes in bfloat16 where torch considers it safe.
        compile: compile the module by torch.compile.
        channels_last: let images in memory have the channels innermost.
        seed: draws the split and `train_rows`; x_0 depends on the seed of the run.
    """
    check_integer("clients", clients)
    if train not in TRAINED:
        raise Invalid(f"`train` must be one of {', '.join(TRAINED)}, got {train!r}.")
    if augment and train == "head":
        raise Invalid("`augment` must be false with train='head', whose features are computed once, got true.")
    if channels_last and train != "all":
        raise Invalid(f"`channels_last` needs train='all', got train={train!r}. Leave out one of the two.")
    if resize < 16 or resize % 16:
        raise Invalid(f"`resize` must be a multiple of 16, got {resize}. Use 64.")
    folder = find_model("pretrained", pretrained, on_hub=False)
    found = CIFAR10.images(data, train_rows=train_rows, test_rows=test_rows, seed=seed, cache=cache)
    rows: tuple[Tensor, ...] = found.train
    test: tuple[Tensor, ...] = found.test
    uncut: Any = None
    if train == "head":
        rows, test = _standardised(*((features(folder, resize, x, device, cache), y) for x, y in found))
        module: Any = partial(nn.Linear, rows[0].shape[1], CLASSES)
    else:
        first = TRAINED[train]
        module = partial(tuned, folder, resize, first, channels_last=channels_last)
        if train != "all" and not augment:
            rows, test = ((*stage_inputs(folder, resize, first, x, device, cache), y) for x, y in found)
            module, uncut = partial(module, cut=True), module
    rows, test = set_apart(rows, test, validation_rows, score_on)
    return TorchTask(
        module,
        loss=nn.functional.cross_entropy,
        data=shard(rows, clients=clients, seed=seed),
        test=test,
        batch_size=batch_size,
        evaluate_batch=64,
        augment=crop_and_flip if augment else None,
        device=device,
        autocast=autocast,
        compile=compile,
        uncut=uncut,
    )


def _standardised(train: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    """Scale features to mean 0 and standard deviation 1 over the training rows; constant features become 0."""
    deviation, mean = torch.std_mean(train[0], dim=0, correction=0)
    scale = torch.where(deviation > 1e-5 * mean.abs(), 1.0 / deviation, 0.0)
    return ((train[0] - mean) * scale, train[1]), ((test[0] - mean) * scale, test[1])
