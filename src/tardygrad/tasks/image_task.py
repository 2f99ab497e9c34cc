"""What the tasks of images have in common: data, a network, a split, and which part is trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.errors import Invalid, check_integer, checked_call
from tardygrad.tasks.data.hub import download
from tardygrad.tasks.data.images import CLASSES, LAYOUTS, Labelled, images
from tardygrad.tasks.data.pixels import Normalize, crop_and_flip
from tardygrad.tasks.data.sharding import How, shard
from tardygrad.tasks.nets.cnn import CNN
from tardygrad.tasks.nets.pretrained_image import entering, features, find, tuned
from tardygrad.tasks.nets.vit import Shape, ViT, fits
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

Model = Literal["vit", "cnn", "tinyvit", "transformers"]
"""A network of our own, from scratch, or a pretrained one."""


class Source(NamedTuple):
    """A data set: what its images are like, where they are if nobody says, and the `task` of learning it."""

    name: str
    shape: Shape
    mean: tuple[float, ...]  # of pixels in [0, 1], per channel
    std: tuple[float, ...]
    repository: str  # on the Hugging Face hub
    folder: Path | None = None  # where a package of the system puts them
    fix: str = "Use"  # how to get them, up to data=FOLDER

    @checked_call
    def task(
        self,
        *,
        clients: int,
        data: str | None = None,
        model: Model = "vit",
        dim: int = 32,
        depth: int = 2,
        heads: int = 4,
        patch: int = 4,
        batch_size: int = 32,
        how: How | None = None,
        concentration: float | None = None,
        labels_per_client: int = 2,
        balanced: bool = True,
        augment: bool = False,
        noise: Noise | None = None,
        train_rows: int | None = None,
        test_rows: int | None = None,
        pretrained: str | None = None,
        train: str | None = None,
        resize: int | None = None,
        cache: str | None = None,
        device: str = "cpu",
        autocast: bool = False,
        seed: int = 0,
    ) -> TorchTask:
        """These images, divided among clients, and a network for them.

        Args:
            clients: number of clients, N.
            data: the folder of the images, see `tasks.data.images`; "hub" fetches them from huggingface.co; None
                is where Debian's package dataset-fashion-mnist puts Fashion-MNIST, and no place for the others.
            model: "vit", a vision transformer, or "cnn", three convolutions, from scratch; "tinyvit" or
                "transformers", pretrained.
            dim: width of the transformer, or of the first convolution.
            depth: blocks of the transformer.
            heads: of its attention; must divide `dim`.
            patch: side of its patches in pixels; must divide that of the images.
            batch_size: rows per local step.
            how: the split over clients: "iid", "dirichlet" or "label"; see `shard`.
            concentration: of the "dirichlet" split; the smaller, the more clients differ.
            labels_per_client: labels of each client in the "label" split.
            balanced: every client gets the same number of rows.
            augment: random crops and flips of the training images, drawn from the job's stream.
            noise: heavy-tailed noise that is added to every gradient.
            train_rows: of the training set, drawn with `seed`; None is all.
            test_rows: of the test set, the same for every seed; None is all.
            pretrained: the folder of a pretrained network, or for "transformers" its name on the hub.
            train: the "head" of a pretrained network, the "last-N" blocks and the head, or "all". What is frozen is
                computed once, but for "last-N" with `augment`. None is "head".
            resize: side in pixels of the images that a pretrained network gets; None is 64 for TinyViT, and what the
                model's configuration says for "transformers".
            cache: the folder for decoded images and features; None is ~/.cache/tardygrad.
            device: where data, vectors and the module live.
            autocast: forward passes in bfloat16 where torch thinks it safe.
            seed: of the split and of `train_rows`; x_0 depends on the seed of the run.
        """
        sizes = {"clients": clients, "dim": dim, "train_rows": train_rows, "test_rows": test_rows, "resize": resize}
        for name, value in sizes.items():
            if value is not None:
                check_integer(name, value)
        _pretraining(model, pretrained, train, resize, augment)
        if model == "vit":
            fits(dim=dim, depth=depth, heads=heads, patch=patch, shape=self.shape)
        fit, test = images(self._find(data), self.shape, cache=cache)
        fit, test = _sample("train_rows", fit, train_rows, seed), _sample("test_rows", test, test_rows, 0)
        held: tuple[Tensor, ...] = fit
        tested: tuple[Tensor, ...] = test
        normalize = Normalize(self.mean, self.std)
        module: Callable[[], nn.Module]
        uncut: Callable[[], nn.Module] | None = None
        if model == "vit":
            size = {"dim": dim, "depth": depth, "heads": heads, "patch": patch}
            module = partial(ViT, **size, shape=self.shape, classes=CLASSES, normalize=normalize)
        elif model == "cnn":
            module = partial(CNN, dim=dim, channels=self.shape[0], classes=CLASSES, normalize=normalize)
        else:
            folder = find(str(pretrained), model)
            if train in (None, "head"):
                held, tested = _standardised(
                    *((features(model, folder, resize, x, device, cache), y) for x, y in (fit, test))
                )
                module = partial(nn.Linear, held[0].shape[1], CLASSES)
            else:
                network = (model, folder, resize, str(train))
                if train != "all" and not augment:
                    held, tested = ((*(entering(*network, x, device, cache) or (x,)), y) for x, y in (fit, test))
                module = partial(tuned, *network, self.shape, CLASSES)
                if held[0].is_floating_point():  # no pixels
                    module, uncut = partial(module, cut=True), module
        return TorchTask(
            module,
            loss=nn.functional.cross_entropy,
            shards=shard(
                held,
                clients=clients,
                how=how,
                concentration=concentration,
                labels_per_client=labels_per_client,
                balanced=balanced,
                seed=seed,
            ),
            test=tested,
            batch_size=batch_size,
            noise=noise,
            evaluate_batch=1024 if pretrained is None else 64,
            augment=crop_and_flip if augment else None,
            device=device,
            autocast=autocast,
            uncut=uncut,
        )

    def _find(self, data: str | None) -> Path:
        """Where the images are."""
        if data == "hub":
            rule, fix = f"data='hub' needs {self.repository}", "Download it elsewhere and give data=FOLDER."
            return download(self.repository, ["*.parquet"], rule, fix, dataset=True)
        if data is not None:
            return Path(data)
        if self.folder is None or not self.folder.is_dir():
            raise Invalid(
                f"{self.name} needs its images, got no `data`. {self.fix} data=FOLDER, a folder with {LAYOUTS}; "
                "or data='hub' with an internet connection."
            )
        return self.folder


def _pretraining(model: Model, pretrained: str | None, train: str | None, resize: int | None, augment: bool) -> None:
    """The rules of pretrained networks, before anything is read."""
    known = get_args(Model)
    if model not in known:
        raise Invalid(f"`model` must be one of {', '.join(known)}, got {model!r}.")
    if model in ("vit", "cnn"):
        for name, value in (("pretrained", pretrained), ("train", train), ("resize", resize)):
            if value is not None:
                rule = f"`{name}` belongs to model='tinyvit' and model='transformers'"
                raise Invalid(f"{rule}, got model={model!r}. Leave it out.")
        return
    if pretrained is None:
        fix = "FOLDER" if model == "tinyvit" else "FOLDER, or a name on the hub such as 'google/vit-base-patch16-224'"
        raise Invalid(f"model={model!r} needs its weights, got none. Use pretrained={fix}.")
    if train not in (None, "head", "all") and not re.fullmatch(r"last-[1-9]\d*", str(train)):
        raise Invalid(f"`train` must be 'head', 'all' or 'last-N' with a number of blocks N, got {train!r}.")
    if augment and train in (None, "head"):
        raise Invalid("`augment` must be false where features are computed once (train='head'), got true.")
    if model == "tinyvit" and resize and resize % 16:
        raise Invalid(f"`resize` must be a multiple of 16 for TinyViT, got {resize}. Use 64.")


def _sample(name: str, held: Labelled, rows: int | None, seed: int) -> Labelled:
    """So many rows, the same for the same seed."""
    inputs, labels = held
    if rows is None:
        return held
    if rows > len(labels):
        raise Invalid(f"`{name}` must be at most the number of images ({len(labels)}), got {rows}.")
    drawn = streams.generator(seed, name).permutation(len(labels))[:rows]
    chosen = torch.from_numpy(drawn).sort().values
    return inputs[chosen], labels[chosen]


def _standardised(fit: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    """Features with mean 0 and standard deviation 1 over the training rows; 0 where they differ by rounding only."""
    deviation, mean = torch.std_mean(fit[0], dim=0, correction=0)
    scale = torch.where(deviation > 1e-5 * mean.abs(), 1.0 / deviation, 0.0)
    return ((fit[0] - mean) * scale, fit[1]), ((test[0] - mean) * scale, test[1])
