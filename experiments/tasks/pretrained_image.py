"""Pretrained image networks: loading, freezing, and features that are computed once.

A network is a backbone, which computes features, and a new linear head. `train` selects the trained part: the "head",
on cached features; the "last-N" blocks and the head; or "all". The rest is frozen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.tasks import tinyvit, trainable_layers
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.cache import Key, Tensors, cached
from tardygrad.tasks.data.files import reading
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import find_model, load, quiet
from tardygrad.tasks.data.images import CLASSES, Labelled
from tardygrad.tasks.data.pixels import Normalize, crop_and_flip
from tardygrad.tasks.data.sharding import shard
from tardygrad.tasks.image_task import CIFAR10
from tardygrad.tasks.torch_task import TorchTask

Family = Literal["tinyvit", "transformers"]
"""Where the network's code comes from: this package, or the transformers library."""


class Prepared(nn.Module):
    """Prepares pixels for a pretrained network: normalised, three channels, resized."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], side: int) -> None:
        super().__init__()
        self.normalize, self.side = Normalize(mean, std), side

    def forward(self, pixels: Tensor) -> Tensor:
        images = self.normalize(pixels)  # turns one channel into three
        return F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)


class Headless(nn.Module):
    """A classifier of transformers without its head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).logits.flatten(1)


class Tuned(nn.Module):
    """A pretrained backbone on pixels, or its last layers on cached inputs, and a head; frozen parts never change."""

    def __init__(self, prepared: Prepared | None, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.prepared, self.backbone, self.head = prepared, backbone, head

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        trainable_layers.set_frozen_to_eval(self.backbone)
        return self

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.backbone(*map(self.prepared, inputs) if self.prepared else inputs))


class Backbone(NamedTuple):
    """A pretrained network without its head, and the preparation of its pixels."""

    module: nn.Module
    prepared: Prepared


def backbone(family: Family, folder: Path, side: int | None) -> Backbone:
    """Load the network of a folder; `side` is that of its input images, None its default."""
    if family == "tinyvit":
        return Backbone(tinyvit.load(folder), Prepared(tinyvit.MEAN, tinyvit.STD, side or 64))
    with quiet() as transformers:
        kind = transformers.AutoModelForImageClassification
        rule = "`pretrained` must be an image model"
        model = load(kind, folder, rule, dtype=torch.float32, use_safetensors=True)
    base = model.base_model
    heads = [n for n, part in model.named_children() if part is not base and any(True for _ in part.parameters())]
    if len(heads) != 1 or base is model:
        got = ", ".join(heads) or "none"
        raise Invalid(
            f"`pretrained` must be a model with one classifier on a base, got {got} in {type(model).__name__}."
        )
    setattr(model, heads[0], nn.Identity())
    mean, std = _statistics(folder)
    size = getattr(model.config, "image_size", None) or 224
    return Backbone(Headless(model), Prepared(mean, std, side or (size if isinstance(size, int) else max(size))))


def tuned(
    family: Family,
    folder: Path,
    side: int | None,
    train: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    cut: bool = False,
    channels_last: bool = False,
) -> Tuned:
    """A network to fine-tune: the backbone, whole or `cut` to its trained layers, and a head from torch's generator."""
    module, prepared = backbone(family, folder, side)
    prepared.normalize.channels_last = channels_last
    trainable_layers.freeze(module, train)
    with torch.no_grad():
        width = module.eval()(prepared(torch.zeros(1, *shape))).shape[1]
    cut = cut and trainable_layers.cut(module, train)
    return Tuned(None if cut else prepared, module, nn.Linear(width, classes)).train()


def layer_inputs(
    family: Family, folder: Path, side: int | None, train: str, pixels: Tensor, device: str, cache: str | None
) -> tuple[Tensor, ...]:
    """Inputs of the last N blocks, computed once for the same images and weights; empty if they cannot be cut off."""

    def make() -> Tensors:
        found = backbone(family, folder, side)
        trainable_layers.freeze(found.module, train)
        whole = nn.Sequential(found.prepared, found.module).to(device)
        count = 2 if family == "tinyvit" else 1  # the means of earlier stages are inputs too
        fix = "Lower train_rows, test_rows or resize."
        return trainable_layers.layer_inputs(whole, found.module, train, [pixels], arguments=count, fix=fix)

    return tuple(cached("states", make, *_key(family, folder, side), train, pixels, folder=cache).values())


def features(family: Family, folder: Path, side: int | None, pixels: Tensor, device: str, cache: str | None) -> Tensor:
    """A backbone's features of images, one row each; computed once for the same images and weights."""

    @torch.no_grad()
    def make() -> Tensors:
        found = backbone(family, folder, side)
        network = nn.Sequential(found.prepared, found.module).to(device).eval()
        return {"features": torch.cat([network(part.to(device)).cpu() for part in torch.split(pixels, 50)])}

    return cached("features", make, *_key(family, folder, side), pixels, folder=cache)["features"]


def _key(family: Family, folder: Path, side: int | None) -> list[Key]:
    """Everything a backbone's outputs depend on, except the images."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    return [family, version("transformers") if family == "transformers" else "1", str(side), *files]


def _statistics(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of pixels from preprocessor_config.json; 0.5 if there is none."""
    path, half = folder / "preprocessor_config.json", [0.5, 0.5, 0.5]
    with reading(f"{path.name} in {str(folder)!r}"):
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return config.get("image_mean", half), config.get("image_std", half)


def cifar10(
    *,
    clients: int,
    data: str,
    pretrained: str,
    model: Family = "tinyvit",
    train: str = "head",
    resize: int | None = None,
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
    """CIFAR-10, split over clients, and a pretrained network with a new head.

    Args:
        clients: number of clients, N.
        data: the folder with the images, as `tasks.cifar10` takes it.
        pretrained: the folder of the network; for "transformers" also a name on the hub.
        model: "tinyvit", or "transformers": any image classifier of the library.
        train: the "head", the "last-N" blocks and the head, or "all". Outputs of frozen layers are computed once,
            except for "last-N" with `augment`.
        resize: side in pixels of the network's input; None is 64 for TinyViT, and the model's own for "transformers".
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
    _check_model(model, train, resize, augment, channels_last)
    found = CIFAR10.images(data, train_rows=train_rows, test_rows=test_rows, seed=seed, cache=cache)
    folder = find_model("pretrained", pretrained, on_hub=model != "tinyvit")
    rows: tuple[Tensor, ...] = found.train
    test: tuple[Tensor, ...] = found.test
    uncut: Any = None
    if train == "head":
        rows, test = _standardised(*((features(model, folder, resize, x, device, cache), y) for x, y in found))
        module: Any = partial(nn.Linear, rows[0].shape[1], CLASSES)
    else:
        network = (model, folder, resize, train)
        if train != "all" and not augment:
            rows, test = ((*(layer_inputs(*network, x, device, cache) or (x,)), y) for x, y in found)
        module = partial(tuned, *network, CIFAR10.shape, CLASSES, channels_last=channels_last)
        if rows[0].is_floating_point():  # layer inputs instead of pixels
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


def _check_model(model: Family, train: str, resize: int | None, augment: bool, channels_last: bool) -> None:
    """Check the settings before anything is read."""
    check_choice("model", model, Family)
    trainable_layers.check_train(train)
    if augment and train == "head":
        raise Invalid("`augment` must be false with train='head', whose features are computed once, got true.")
    if channels_last and train != "all":
        rule = "`channels_last` of a pretrained network needs train='all'"
        raise Invalid(f"{rule}, got train={train!r}. Leave out `channels_last`.")
    if model == "tinyvit" and resize and resize % 16:
        raise Invalid(f"`resize` must be a multiple of 16 for TinyViT, got {resize}. Use 64.")


def _standardised(train: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    """Scale features to mean 0 and standard deviation 1 over the training rows; constant features become 0."""
    deviation, mean = torch.std_mean(train[0], dim=0, correction=0)
    scale = torch.where(deviation > 1e-5 * mean.abs(), 1.0 / deviation, 0.0)
    return ((train[0] - mean) * scale, train[1]), ((test[0] - mean) * scale, test[1])
