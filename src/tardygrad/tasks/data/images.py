"""Labelled images from a folder, in any of four layouts, and their way into a network. Nothing is ever unpickled.

    idx       train-images-idx3-ubyte, train-labels-idx1-ubyte and the same for t10k, each plain or .gz (MNIST's own)
    parquet   train*.parquet and test*.parquet as on the Hugging Face hub, in the folder or one below: `img` or `image`
              with the bytes of a PNG, a WebP, …, and `label`
    binary    data_batch_1.bin, … and test_batch.bin (CIFAR-10's own "binary version"), in the folder or one below
    npz       one .npz file with x_train, y_train, x_test and y_test (Keras's)

Pixels stay uint8, a quarter of the memory of float32, and are normalised batch by batch. Parquet files are decoded
once; the result is kept in the cache.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tardygrad.errors import Invalid
from tardygrad.tasks.data.files import Tensors, cached, optional, reading
from tardygrad.tasks.nets import Shape

CLASSES = 10
"""Classes of every data set here."""

LAYOUTS = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (plain or "
    ".gz); or train*.parquet and test*.parquet; or data_batch_1.bin … and test_batch.bin; or one .npz file with "
    "x_train, y_train, x_test and y_test"
)
"""The files that a folder may hold, for error texts."""

PAD = 4
"""The most pixels a crop shifts an image in each direction."""

Labelled = tuple[Tensor, Tensor]
"""uint8 images (n, channels, height, width) and their int64 labels."""

Split = tuple[Any, Any]
"""Pixels and labels as a file has them."""


class Images(NamedTuple):
    """A data set: training and test images."""

    train: Labelled
    test: Labelled


def images(data: str | Path, shape: Shape, *, cache: str | Path | None = None) -> Images:
    """Read the images of a folder, in whichever layout it has.

    Args:
        data: the folder, or an .npz file.
        shape: channels, height and width that every image must have.
        cache: where decoded parquet files are kept; see `cached`.
    """
    folder = Path(data)
    with reading(f"the image data in {str(data)!r}"):
        if found := _idx(folder) or _parquet(folder, shape, cache) or _binary(folder, shape) or _npz(folder):
            return Images(*(_checked(*split, shape) for split in found))
    got = "has none of them" if folder.exists() else "does not exist"
    raise Invalid(f"`data` must be a folder with {LAYOUTS}; got {str(data)!r}, which {got}.")


def _found(folder: Path, *patterns: str) -> list[list[Path]] | None:
    """The files of each pattern in a folder, or else one level below; None if a pattern has none."""
    found = [sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}")) for pattern in patterns]
    return found if all(found) else None


def _idx(folder: Path) -> list[Split] | None:
    """0, 0, 8 for uint8, the number of dimensions, their sizes, the values."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    if not (files := _found(folder, *(f"{name}-ubyte*" for name in names))):
        return None
    arrays = []
    for path, *_ in files:
        content = bytearray(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
        if content[:3] != b"\0\0\x08":
            raise Invalid(f"{path.name} must be an idx file of bytes, beginning with 00 00 08.")
        start = 4 + 4 * content[3]
        arrays.append(np.frombuffer(content, np.uint8, offset=start).reshape(np.frombuffer(content[4:start], ">i4")))
    return [(arrays[0], arrays[1]), (arrays[2], arrays[3])]


def _binary(folder: Path, shape: Shape) -> list[Split] | None:
    """Each record is the label, then the red, green and blue planes, row by row."""
    if not (files := _found(folder, "data_batch_*.bin", "test_batch.bin")):
        return None
    row = 1 + int(np.prod(shape))
    parts = [np.concatenate([np.fromfile(path, np.uint8).reshape(-1, row) for path in paths]) for paths in files]
    return [(rows[:, 1:].reshape(-1, *shape), rows[:, 0]) for rows in parts]


def _npz(folder: Path) -> list[Split] | None:
    path = folder if folder.is_file() else next(iter(sorted(folder.glob("*.npz"))), None)
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as file:
        return [(file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])]


def _parquet(folder: Path, shape: Shape, cache: str | Path | None) -> list[Split] | None:
    if not (files := _found(folder, "train*.parquet", "test*.parquet")):
        return None
    train, test = files

    def decode() -> Tensors:
        (x, y), (u, v) = _decoded(train, shape), _decoded(test, shape)
        return {"train": x, "train_labels": y, "test": u, "test_labels": v}

    found = cached("images", decode, str(shape), *train, "test", *test, folder=cache)
    return [(found["train"], found["train_labels"]), (found["test"], found["test_labels"])]


def _decoded(files: Sequence[Path], shape: Shape) -> Labelled:
    optional("pyarrow", "parquet files need pyarrow", "data")
    optional("PIL", "encoded images need Pillow", "data")
    from PIL import Image
    from pyarrow.parquet import ParquetFile

    pixels: list[np.ndarray[Any, Any]] = []
    labels: list[int] = []
    for path in files:
        with reading(path.name):
            file = ParquetFile(path)
            column = "img" if "img" in file.schema_arrow.names else "image"
            for batch in file.iter_batches(1000, columns=[column, "label"]):
                for cell in batch.column(column).to_pylist():
                    content = cell["bytes"] if isinstance(cell, dict) else cell
                    with Image.open(BytesIO(content)) as image:
                        pixels.append(np.asarray(image.convert("L" if shape[0] == 1 else "RGB")))
                labels += batch.column("label").to_pylist()
    return _checked(np.stack(pixels), np.array(labels), shape)


def _checked(pixels: Any, labels: Any, shape: Shape) -> Labelled:
    """Images and labels as tensors; raises `Invalid` if they do not fit."""
    x, y = torch.as_tensor(pixels), torch.as_tensor(labels).reshape(-1)
    channels, height, width = shape
    if tuple(x.shape[1:]) == (height, width, channels):
        x = x.permute(0, 3, 1, 2)
    elif tuple(x.shape[1:]) not in {shape, shape[channels == 1 :]}:
        got = " × ".join(map(str, x.shape[1:])) or "none"
        raise Invalid(f"images must be {channels} × {height} × {width} pixels, got {got}.")
    if x.dtype != torch.uint8 or y.is_floating_point():
        raise Invalid(f"pixels must be uint8, from 0 to 255, and labels whole numbers, got {x.dtype} and {y.dtype}.")
    if len(y) != len(x) or not len(y):
        raise Invalid(f"an image data set must have as many images as labels, at least one, got {len(x)} and {len(y)}.")
    y = y.long()
    if int(y.min()) < 0 or int(y.max()) >= CLASSES:
        raise Invalid(f"labels must be 0 to {CLASSES - 1}, got {int(y.min())} to {int(y.max())}.")
    return x.reshape(-1, *shape).contiguous(), y


class Normalize(nn.Module):
    """(pixels / 255 − mean) / std per channel, as float32; the constants are not trained.

    Args:
        mean: per channel, of pixels in [0, 1].
        std: per channel, of pixels in [0, 1].
        channels_last: whether the output's memory has the channels innermost, in which some convolutions are faster.

    >>> Normalize([0.5], [0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, channels_last: bool = False) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", 255.0 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("scale", 1.0 / (255.0 * torch.tensor(std).view(-1, 1, 1)), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        images = (pixels - self.mean) * self.scale
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images


def crop_and_flip(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Shift each image by up to 4 random pixels in each direction, padded with black, and flip it with probability ½.

    Args:
        images: (n, channels, height, width).
        rng: the generator of this step.
    """
    n, channels, height, width = images.shape
    down, right = rng.integers(0, 2 * PAD + 1, (2, n, 1))
    rows, columns = down + np.arange(height), right + np.arange(width)
    columns = np.where(rng.random((n, 1)) < 0.5, columns[:, ::-1], columns)
    return F.pad(images, (PAD, PAD, PAD, PAD))[
        torch.arange(n)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        torch.from_numpy(rows)[:, None, :, None],
        torch.from_numpy(columns)[:, None, None, :],
    ]
