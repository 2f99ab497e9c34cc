"""Pretrained image networks: loading, freezing, and features that are computed once.

A network is a backbone, which computes features, and a new linear head. `train` selects the trained part: the "head",
on cached features; the "last-N" blocks and the head; or "all". The rest is frozen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import Key, Tensors, cached
from tardygrad.tasks.data.files import reading
from tardygrad.tasks.data.hub import load, quiet
from tardygrad.tasks.data.pixels import Normalize
from tardygrad.tasks.nets import tinyvit, trainable_layers

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
