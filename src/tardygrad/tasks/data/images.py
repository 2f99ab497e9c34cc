"""Labelled images from a folder, in any of four layouts. Nothing is ever unpickled.

    idx       train-images-idx3-ubyte, train-labels-idx1-ubyte and the same for t10k, each plain or .gz (MNIST's own)
    parquet   train*.parquet and test*.parquet as on the Hugging Face hub, in the folder or one below: `img` or `image`
              with the bytes of a PNG, a WebP, …, and `label`
    binary    data_batch_1.bin, … and test_batch.bin (CIFAR-10's own "binary version"), in the folder or one below
    npz       one .npz file with x_train, y_train, x_test and y_test (Keras's)

Pixels stay uint8. Parquet files are decoded once; the result is kept in the cache.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tardygrad.errors import Invalid
from tardygrad.tasks.data.cache import Tensors, cached
from tardygrad.tasks.data.files import optional, parquet, reading, regular
from tardygrad.tasks.nets.vit import Shape

CLASSES = 10
"""Classes of every data set here."""

Labelled = tuple[Tensor, Tensor]
"""uint8 images (n, channels, height, width) and their int64 labels."""

_NPZ = ("x_train", "y_train", "x_test", "y_test")

LAYOUTS = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (plain or "
    ".gz); or train*.parquet and test*.parquet; or data_batch_1.bin … and test_batch.bin; or one .npz file with "
    "x_train, y_train, x_test and y_test"
)
"""The files that a folder may hold, for error texts."""


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
    if not folder.exists():
        raise Invalid(f"`data` must be a folder with {LAYOUTS}; got {str(data)!r}, which does not exist.")
    with reading(f"the image data in {str(data)!r}"):
        for read in (_idx, _parquet, _binary, _npz):
            if found := read(folder, shape, cache):
                return found
    raise Invalid(f"`data` must be a folder with {LAYOUTS}; got {str(data)!r}, which has none of them.")


def idx(path: Path) -> Tensor:
    """Read an idx file of bytes, plain or .gz: 0, 0, 8 for uint8, the number of dimensions, their sizes, the values."""
    with reading(path.name):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise Invalid(f"{path.name} must be an idx file of bytes, beginning with 00 00 08, got {content[:3].hex(' ')}.")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) - start != np.prod(sizes, dtype=np.int64):
        raise Invalid(f"{path.name} must have {' × '.join(map(str, sizes))} values, got {len(content) - start} bytes.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(sizes)


def _idx(folder: Path, shape: Shape, _: object) -> Images | None:
    files = {}
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        plain = folder / f"{name}-ubyte"
        files[plain.name] = [path for path in (plain, plain.with_name(f"{plain.name}.gz")) if path.is_file()][:1]
    if not _complete(folder, files):
        return None
    train, labels, test, test_labels = (path for (path,) in files.values())
    pairs = ((train, labels), (test, test_labels))
    return Images(*(_checked(x.name, idx(x), idx(y), shape) for x, y in pairs))


def _binary(folder: Path, shape: Shape, _: object) -> Images | None:
    """Each record is the label, then the red, green and blue planes, row by row."""
    files = {name: _found(folder, name) for name in ("data_batch_*.bin", "test_batch.bin")}
    if not _complete(folder, files):
        return None
    pairs = []
    for paths in files.values():
        parts = []
        for path in paths:
            content, row = regular(path).read_bytes(), 1 + int(np.prod(shape))
            if not content or len(content) % row:
                raise Invalid(
                    f"{path.name} must have {row} bytes per image, got {len(content)} in all. Download it again."
                )
            parts.append(torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, row))
        rows = torch.cat(parts)
        pairs.append(_checked(paths[0].name, rows[:, 1:].reshape(-1, *shape), rows[:, 0], shape))
    return Images(*pairs)


def _npz(folder: Path, shape: Shape, _: object) -> Images | None:
    path = folder if folder.is_file() else next(iter(sorted(folder.glob("*.npz"))), None)
    if path is None:
        return None
    with reading(path.name), regular(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        if not set(_NPZ) <= set(file.files):
            raise Invalid(f"{path.name} must hold {', '.join(_NPZ)}, got {', '.join(file.files) or 'nothing'}.")
        arrays = {name: file[name] for name in _NPZ}
    for name, array in arrays.items():
        if array.dtype.kind not in "iu":
            raise Invalid(f"{name} in {path.name} must be whole numbers, got {array.dtype}.")
        arrays[name] = array if array.dtype == np.uint8 else array.astype(np.int64)
    pairs = [
        _checked(f"{x} in {path.name}", torch.from_numpy(arrays[x]), torch.from_numpy(arrays[y]), shape)
        for x, y in (_NPZ[:2], _NPZ[2:])
    ]
    return Images(*pairs)


def _parquet(folder: Path, shape: Shape, cache: str | Path | None) -> Images | None:
    files = {name: _found(folder, name) for name in ("train*.parquet", "test*.parquet")}
    if not _complete(folder, files):
        return None
    train, test = files.values()

    def decode() -> Tensors:
        (train_x, train_y), (test_x, test_y) = _decoded(train, shape), _decoded(test, shape)
        return {"train": train_x, "train_labels": train_y, "test": test_x, "test_labels": test_y}

    tensors = cached("images", decode, str(shape), *train, "test", *test, folder=cache)
    return Images((tensors["train"], tensors["train_labels"]), (tensors["test"], tensors["test_labels"]))


def _decoded(files: Sequence[Path], shape: Shape) -> Labelled:
    pixels: list[Tensor] = []
    labels: list[int] = []
    for path in files:
        row = 0
        for cells, classes in parquet(path, "img|image", "label"):
            decoded = [_picture(cell, shape, f"row {i} of {path.name}") for i, cell in enumerate(cells, row)]
            pixels.append(torch.from_numpy(np.stack(decoded)))
            labels += classes
            row += len(cells)
    if not all(isinstance(label, int) for label in labels):
        raise Invalid(f"the column label of {files[0].name} must be a whole number in every row.")
    return _checked(files[0].name, torch.cat(pixels) if pixels else torch.empty(0), torch.tensor(labels), shape)


def _picture(cell: Any, shape: Shape, where: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Decode an image file to (channels, height, width)."""
    optional("PIL", "encoded images need Pillow", "data")
    from PIL import Image

    content: Any = cell.get("bytes") if isinstance(cell, dict) else cell
    try:
        with Image.open(BytesIO(content)) as image:
            pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"))
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        raise Invalid(f"{where} must hold the bytes of an image file, and cannot be decoded ({error}).") from error
    if pixels.shape[:2] != shape[1:]:
        got = f"{pixels.shape[0]} × {pixels.shape[1]}"
        raise Invalid(f"images must be {shape[1]} × {shape[2]} pixels, got {got} in {where}.")
    return pixels[None] if shape[0] == 1 else pixels.transpose(2, 0, 1)


def _found(folder: Path, name: str) -> list[Path]:
    """Files that match a pattern in a folder, or else one level below."""
    return sorted(folder.glob(name)) or sorted(folder.glob(f"*/{name}"))


def _complete(folder: Path, files: dict[str, list[Path]]) -> bool:
    """Whether all files of a layout exist; raises `Invalid` if only some do."""
    missing = [name for name, found in files.items() if not found]
    if missing and len(missing) < len(files):
        raise Invalid(f"`data` must be a folder with {', '.join(files)}; got {str(folder)!r} without {missing[0]}.")
    return not missing


def _checked(name: str, pixels: Tensor, labels: Tensor, shape: Shape) -> Labelled:
    """Images and labels in our layout; raises `Invalid` if they do not fit."""
    channels, height, width = shape
    each = tuple(pixels.shape[1:])
    if each == (height, width, channels):
        pixels = pixels.permute(0, 3, 1, 2)
    elif each != shape and (channels > 1 or each != (height, width)):
        rule = f"{channels} × {height} × {width}" if channels > 1 else f"{height} × {width}"
        raise Invalid(f"images in {name} must be {rule} pixels, got {' × '.join(map(str, each)) or 'none'}.")
    if pixels.dtype != torch.uint8:
        raise Invalid(f"pixels in {name} must be uint8, from 0 to 255, got {pixels.dtype}.")
    labels = labels.reshape(-1).long()
    if len(labels) != len(pixels) or not len(labels):
        counts = f"{len(pixels)} and {len(labels)} ({name})"
        raise Invalid(f"there must be as many images as labels, at least one, got {counts}.")
    if int(labels.min()) < 0 or int(labels.max()) >= CLASSES:
        wrong = int(labels[(labels < 0) | (labels >= CLASSES)][0])
        raise Invalid(f"labels must be 0 to {CLASSES - 1}, got {wrong} ({name}).")
    return pixels.reshape(-1, *shape).contiguous(), labels
