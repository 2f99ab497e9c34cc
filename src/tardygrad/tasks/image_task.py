"""Image classification: CIFAR-10, Fashion-MNIST and MNIST, with a small network or a pretrained one.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009.
H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms. 2017.
Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proc. IEEE, 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from tardygrad import streams
from tardygrad.constructors import constructor
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import download, find_model
from tardygrad.tasks.data.images import CLASSES, LAYOUTS, Labelled, images
from tardygrad.tasks.data.pixels import Normalize, crop_and_flip
from tardygrad.tasks.data.sharding import SplitSettings, shard
from tardygrad.tasks.nets.cnn import CNN
from tardygrad.tasks.nets.pretrained_image import features, layer_inputs, tuned
from tardygrad.tasks.nets.trainable_layers import check_train
from tardygrad.tasks.nets.vit import Shape, ViT, check_sizes
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

Model = Literal["vit", "cnn", "tinyvit", "transformers"]
"""A small network trained from scratch ("vit", "cnn"), or a pretrained one."""


class Source(NamedTuple):
    """A data set: its images, where to find them, and the `task` of classifying them."""

    name: str
    shape: Shape
    mean: tuple[float, ...]  # of pixels in [0, 1], per channel
    std: tuple[float, ...]
    repository: str  # on the Hugging Face hub
    folder: Path | None = None  # where a system package installs it
    fix: str = "Use"  # begins the advice in the error text, before data=FOLDER

    @constructor(passes_to=(TorchTask, shard))
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
        augment: bool = False,
        noise: Noise | None = None,
        train_rows: int | None = None,
        test_rows: int | None = None,
        validation_rows: int = 0,
        score_on: ScoreOn = "test",
        pretrained: str | None = None,
        train: str | None = None,
        resize: int | None = None,
        cache: str | None = None,
        device: str = "cpu",
        autocast: bool = False,
        compile: bool = False,
        channels_last: bool = False,
        seed: int = 0,
        **split: Unpack[SplitSettings],
    ) -> TorchTask:
        """Image classification: a data set of ten classes, split over clients, and a network for it.

        Args:
            data: the folder with the images (layouts: see `tasks.data.images`), or "hub" to download them from
                huggingface.co. Only Fashion-MNIST has a default, the folder of Debian's dataset-fashion-mnist.
            model: "vit", a vision transformer, or "cnn", three convolutions, both trained from scratch; "tinyvit" or
                "transformers", pretrained.
            dim: width of the transformer, or channels of the first convolution.
            depth: blocks of the transformer.
            heads: attention heads of the transformer; must divide `dim`.
            patch: side of the transformer's patches in pixels; must divide the images' side.
            augment: whether to crop and flip training images at random, drawn from the job's stream.
            train_rows: how many training images to use, drawn with `seed`; None is all.
            test_rows: how many test images to use, the same for every seed; None is all.
            validation_rows: how many of the training images to set apart, the same for every seed of the run.
            score_on: evaluate on the "test" images, or on the "validation" images, to choose settings by.
            pretrained: the folder of a pretrained network; for "transformers" also a name on the hub.
            train: which part of a pretrained network to train: the "head" (the default), the "last-N" blocks and the
                head, or "all". Outputs of frozen layers are computed once, except for "last-N" with `augment`.
            resize: side in pixels of a pretrained network's input; None is 64 for TinyViT, and the model's own for
                "transformers".
            cache: the folder for decoded images and features; None is ~/.cache/tardygrad.
            channels_last: let images in memory have the channels innermost, in which some convolutions are faster.
            seed: draws the split and `train_rows`; x_0 depends on the seed of the run.
        """
        sizes = {"clients": clients, "dim": dim, "train_rows": train_rows, "test_rows": test_rows, "resize": resize}
        for name, value in sizes.items():
            if value is not None:
                check_integer(name, value)
        _check_model(model, pretrained, train, resize, augment, channels_last)
        if model == "vit":
            check_sizes(dim=dim, depth=depth, heads=heads, patch=patch, shape=self.shape)
        raw, raw_test = images(self._find(data), self.shape, cache=cache)
        raw, raw_test = _sample("train_rows", raw, train_rows, seed), _sample("test_rows", raw_test, test_rows, 0)
        rows: tuple[Tensor, ...] = raw
        test: tuple[Tensor, ...] = raw_test
        normalize = Normalize(self.mean, self.std, channels_last=channels_last)
        module: Callable[[], nn.Module]
        uncut: Callable[[], nn.Module] | None = None
        if model == "vit":
            size = {"dim": dim, "depth": depth, "heads": heads, "patch": patch}
            module = partial(ViT, **size, shape=self.shape, classes=CLASSES, normalize=normalize)
        elif model == "cnn":
            module = partial(CNN, dim=dim, channels=self.shape[0], classes=CLASSES, normalize=normalize)
        else:
            folder = find_model("pretrained", str(pretrained), on_hub=model != "tinyvit")
            if train in (None, "head"):
                pairs = ((features(model, folder, resize, x, device, cache), y) for x, y in (raw, raw_test))
                rows, test = _standardised(*pairs)
                module = partial(nn.Linear, rows[0].shape[1], CLASSES)
            else:
                network = (model, folder, resize, str(train))
                if train != "all" and not augment:
                    rows, test = ((*(layer_inputs(*network, x, device, cache) or (x,)), y) for x, y in (raw, raw_test))
                module = partial(tuned, *network, self.shape, CLASSES, channels_last=channels_last)
                if rows[0].is_floating_point():  # layer inputs instead of pixels
                    module, uncut = partial(module, cut=True), module
        rows, test = set_apart(rows, test, validation_rows, score_on)
        return TorchTask(
            module,
            loss=nn.functional.cross_entropy,
            data=shard(rows, clients=clients, seed=seed, **split),
            test=test,
            batch_size=batch_size,
            noise=noise,
            evaluate_batch=1024 if pretrained is None else 64,
            augment=crop_and_flip if augment else None,
            device=device,
            autocast=autocast,
            compile=compile,
            uncut=uncut,
        )

    def _find(self, data: str | None) -> Path:
        """The folder with the images."""
        if data == "hub":
            return download(self.repository, ["*.parquet"], f"data='hub' needs {self.repository}", dataset=True)
        if data is not None:
            return Path(data)
        if self.folder is None or not self.folder.is_dir():
            raise Invalid(
                f"{self.name} needs its images, got no `data`. {self.fix} data=FOLDER, a folder with {LAYOUTS}; "
                "or data='hub' with an internet connection."
            )
        return self.folder


def _check_model(
    model: Model, pretrained: str | None, train: str | None, resize: int | None, augment: bool, channels_last: bool
) -> None:
    """Check the settings of pretrained networks before anything is read."""
    check_choice("model", model, Model)
    if model in ("vit", "cnn"):
        for name, value in (("pretrained", pretrained), ("train", train), ("resize", resize)):
            if value is not None:
                rule = f"`{name}` belongs to model='tinyvit' and model='transformers'"
                raise Invalid(f"{rule}, got model={model!r}. Leave it out.")
        return
    if pretrained is None:
        fix = "FOLDER" if model == "tinyvit" else "FOLDER, or a name on the hub such as 'google/vit-base-patch16-224'"
        raise Invalid(f"model={model!r} needs its weights, got none. Use pretrained={fix}.")
    check_train(train or "head")
    if augment and train in (None, "head"):
        raise Invalid("`augment` must be false with train='head', whose features are computed once, got true.")
    if channels_last and train != "all":
        rule = "`channels_last` of a pretrained network needs train='all'"
        raise Invalid(f"{rule}, got train={train or 'head'!r}. Leave out `channels_last`.")
    if model == "tinyvit" and resize and resize % 16:
        raise Invalid(f"`resize` must be a multiple of 16 for TinyViT, got {resize}. Use 64.")


def _sample(name: str, data: Labelled, rows: int | None, seed: int) -> Labelled:
    """A sample of `rows` images, determined by the seed."""
    inputs, labels = data
    if rows is None:
        return data
    if rows > len(labels):
        raise Invalid(f"`{name}` must be at most the number of images ({len(labels)}), got {rows}.")
    drawn = streams.generator(seed, name).permutation(len(labels))[:rows]
    chosen = torch.from_numpy(drawn).sort().values
    return inputs[chosen], labels[chosen]


def _standardised(train: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    """Scale features to mean 0 and standard deviation 1 over the training rows; constant features become 0."""
    deviation, mean = torch.std_mean(train[0], dim=0, correction=0)
    scale = torch.where(deviation > 1e-5 * mean.abs(), 1.0 / deviation, 0.0)
    return ((train[0] - mean) * scale, train[1]), ((test[0] - mean) * scale, test[1])


CIFAR10 = Source(
    "CIFAR-10",
    shape=(3, 32, 32),
    mean=(0.49139968, 0.48215841, 0.44653091),
    std=(0.24703223, 0.24348513, 0.26158784),
    repository="uoft-cs/cifar10",
)
FASHION = Source(
    "Fashion-MNIST",
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    repository="zalando-datasets/fashion_mnist",
    folder=Path("/usr/share/datasets/fashion-mnist"),
    fix="Use apt-get install dataset-fashion-mnist on Debian or Ubuntu; or",
)
MNIST = Source("MNIST", shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,), repository="ylecun/mnist")

cifar10, fashion, mnist = CIFAR10.task, FASHION.task, MNIST.task
