"""Pretrained networks for images: which part of one is trained, and features that are computed once.

A network is a backbone, which makes features, and a fresh linear head. What is trained is the vector, what is not is
frozen: the "head", on features that are kept in the cache; the "last-N" blocks and the head; or "all".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import Key, Tensors, cached
from tardygrad.tasks.data.hub import download, load, quiet
from tardygrad.tasks.data.pixels import Normalize
from tardygrad.tasks.nets import tinyvit, trainable_layers

Family = Literal["tinyvit", "transformers"]
"""Whose code runs the network: ours, or that of the library transformers."""


class Prepared(nn.Module):
    """Pixels as a pretrained network wants them: normalised, three channels, its own side."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], side: int) -> None:
        super().__init__()
        self.normalize, self.side = Normalize(mean, std), side

    def forward(self, pixels: Tensor) -> Tensor:
        images: Tensor = self.normalize(pixels)  # which makes three channels of one
        return F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)


class Headless(nn.Module):
    """A classifier of transformers whose head is taken off."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(pixel_values=images).logits
        return features.flatten(1)


class Tuned(nn.Module):
    """A pretrained backbone on pixels, or its tail on what enters it, and a head; frozen parts stay as they are."""

    def __init__(self, prepared: Prepared | None, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.prepared, self.backbone, self.head = prepared, backbone, head

    def train(self, mode: bool = True) -> Tuned:
        super().train(mode)
        trainable_layers.rest(self.backbone)
        return self

    def forward(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(*map(self.prepared, inputs) if self.prepared else inputs))
        return logits


class Backbone(NamedTuple):
    """A pretrained network without its head, and how it wants its pixels."""

    module: nn.Module
    prepared: Prepared


def backbone(family: Family, folder: Path, side: int | None) -> Backbone:
    """The network of a folder; images are resized to `side`, None being the side it was made for."""
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
) -> Tuned:
    """A network to fine-tune: the backbone as it is, or `cut` to what is trained, and a head from torch's generator."""
    module, prepared = backbone(family, folder, side)
    trainable_layers.freeze(module, train)
    with torch.no_grad():
        width = module.eval()(prepared(torch.zeros(1, *shape))).shape[1]
    cut = cut and trainable_layers.cut(module, train)
    return Tuned(None if cut else prepared, module, nn.Linear(width, classes)).train()


def entering(
    family: Family, folder: Path, side: int | None, train: str, pixels: Tensor, device: str, cache: str | None
) -> tuple[Tensor, ...]:
    """What enters the last N blocks, computed once for the same images and weights; nothing if they cannot be cut."""

    def make() -> Tensors:
        found = backbone(family, folder, side)
        trainable_layers.freeze(found.module, train)
        whole = nn.Sequential(found.prepared, found.module).to(device)
        count = 2 if family == "tinyvit" else 1  # the means of stages before are features too
        fix = "Lower train_rows, test_rows or resize."
        return trainable_layers.entering(whole, found.module, train, [pixels], arguments=count, fix=fix)

    return tuple(cached("states", make, *_key(family, folder, side), train, pixels, folder=cache).values())


def features(family: Family, folder: Path, side: int | None, pixels: Tensor, device: str, cache: str | None) -> Tensor:
    """What a backbone makes of images, one row each; computed once for the same images and weights."""

    @torch.no_grad()
    def make() -> Tensors:
        found = backbone(family, folder, side)
        network = nn.Sequential(found.prepared, found.module).to(device).eval()
        return {"features": torch.cat([network(part.to(device)).cpu() for part in torch.split(pixels, 50)])}

    return cached("features", make, *_key(family, folder, side), pixels, folder=cache)["features"]


def _key(family: Family, folder: Path, side: int | None) -> list[Key]:
    """All that a backbone's answers depend on, but for the images."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    return [family, version("transformers") if family == "transformers" else "1", str(side), *files]


def find(pretrained: str, family: Family) -> Path:
    """The folder of a network: given, or fetched from the hub, which keeps it."""
    folder = Path(pretrained)
    if folder.is_dir():
        return folder
    rule = f"`pretrained` must be a folder with config.json and model.safetensors, got {pretrained!r}"
    if family == "tinyvit" or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", pretrained) or pretrained.startswith("."):
        raise Invalid(f"{rule}, which is no folder.")
    fix = "Download it elsewhere and give its folder."
    return download(pretrained, ["*.json", "*.safetensors"], rule, fix)


def _statistics(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of pixels, from preprocessor_config.json; a half each where there is none."""
    path, half = folder / "preprocessor_config.json", [0.5, 0.5, 0.5]
    try:
        said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise Invalid(f"{path.name} in {str(folder)!r} must be JSON, and cannot be read as such ({error}).") from error
    return said.get("image_mean", half), said.get("image_std", half)
