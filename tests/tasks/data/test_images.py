"""Reading images: every layout gives the same pixels, and every broken one its own sentence."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tardygrad.errors import Invalid
from tardygrad.tasks.data import images as module
from tardygrad.tasks.data.images import LAYOUTS, images
from tests.tasks.picture_files import (
    GRAY,
    RGB,
    encoded,
    idx_bytes,
    pictures,
    same,
    write_binary,
    write_idx,
    write_npz,
    write_parquet,
)

SHARED = Path(__file__).parents[3].parent / "shared/data"

LAYOUT = {
    "idx": (partial(write_idx, packed=False), GRAY),
    "idx, gzipped": (write_idx, GRAY),
    "binary": (write_binary, RGB),
    "npz": (lambda folder, *data: write_npz(folder / "any.npz", *data), RGB),
    "npz, channels last": (lambda folder, *data: write_npz(folder / "any.npz", *data, last=True), RGB),
    "parquet": (write_parquet, RGB),
    "parquet, WebP": (partial(write_parquet, kind="webp"), RGB),
    "parquet, one below": (lambda folder, *data: write_parquet(folder / "plain_text", *data), RGB),
    "parquet, gray": (partial(write_parquet, column="image"), GRAY),
}


@pytest.mark.parametrize(("write", "shape"), LAYOUT.values(), ids=LAYOUT)
def test_every_layout_gives_the_same_pixels_and_labels(write, shape, tmp_path):
    train, test = pictures(24, shape), pictures(11, shape, seed=1)
    write(tmp_path / "", train, test)
    found = images(tmp_path, shape, cache=tmp_path / "cache")
    assert same(found.train, train)
    assert same(found.test, test)
    for pixels, labels in found:
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        assert labels.dtype == torch.int64


def test_parquet_files_are_decoded_once(tmp_path, monkeypatch):
    train, test = pictures(12, RGB), pictures(10, RGB)
    write_parquet(tmp_path / "data", train, test)
    decoded = []
    monkeypatch.setattr(module, "_decoded", lambda *a, real=module._decoded: decoded.append(a) or real(*a))
    for _ in range(2):
        assert same(images(tmp_path / "data", RGB, cache=tmp_path / "cache").train, train)
    assert len(decoded) == 2  # train and test
    other = pictures(12, RGB, seed=3)
    write_parquet(tmp_path / "data", other, test)
    assert same(images(tmp_path / "data", RGB, cache=tmp_path / "cache").train, other)
    assert len(decoded) == 4


IDX = "train-images-idx3-ubyte"
FIRST = "train-00000-of-00002.parquet"
NPZ = {"x_train": np.zeros((10, 3, 32, 32), np.uint8), "y_train": np.arange(10)}
NPZ |= {"x_test": NPZ["x_train"], "y_test": NPZ["y_train"]}
PICTURE = {"bytes": encoded(np.zeros(RGB, np.uint8), "png"), "path": None}


def put(folder, name, content):
    (folder / name).write_bytes(content)


def rows(folder, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), folder / FIRST)


def npz(folder, **arrays):
    np.savez(folder / "any.npz", **NPZ | arrays)


BROKEN = {
    "no labels": ("idx", lambda f: (f / "t10k-labels-idx1-ubyte").unlink(), "must be a folder with train-images"),
    "another magic number": ("idx", lambda f: put(f, IDX, b"\0\0\x0d\x03" + bytes(12)), "beginning with 00 00 08."),
    "a short idx file": ("idx", lambda f: put(f, IDX, idx_bytes(np.zeros((24, 28, 28)))[:-5]), "cannot be read ("),
    "other sizes": (
        "idx",
        lambda f: put(f, IDX, idx_bytes(np.zeros((24, 8, 8)))),
        "images must be 1 × 28 × 28 pixels, got 8 × 8.",
    ),
    "a wrong label": (
        "binary",
        lambda f: put(f, "test_batch.bin", b"\x0b" + bytes(3072)),
        "labels must be 0 to 9, got 11",
    ),
    "a pickle for an npz": (
        "npz",
        lambda f: npz(f, x_train=np.array([{}])),
        "(ValueError: Object arrays",
    ),
    "signed pixels": (
        "npz",
        lambda f: npz(f, x_test=np.zeros((10, 3, 32, 32), int)),
        "pixels must be uint8",
    ),
    "other columns": ("parquet", lambda f: rows(f, img=[PICTURE], fine_label=[3]), f"{FIRST} cannot be read ("),
    "a row without label": ("parquet", lambda f: rows(f, img=[PICTURE, PICTURE], label=[1, None]), "cannot be read ("),
}


@pytest.mark.parametrize(("layout", "break_", "text"), BROKEN.values(), ids=BROKEN)
def test_a_broken_data_set_is_told_in_one_sentence(layout, break_, text, tmp_path):
    write, shape = LAYOUT[layout]
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder, pictures(24, shape), pictures(10, shape))
    break_(folder)
    with pytest.raises(Invalid) as caught:
        images(folder, shape, cache=tmp_path / "cache")
    assert text.format(folder=folder) in str(caught.value)


def test_a_folder_without_images_is_told_what_it_may_hold(tmp_path):
    for folder, why in ((tmp_path, "which has none of them"), (tmp_path / "no", "which does not exist")):
        with pytest.raises(Invalid) as caught:
            images(folder, RGB)
        assert str(caught.value) == f"`data` must be a folder with {LAYOUTS}; got {str(folder)!r}, {why}."


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs shared/data/cifar10 beside the repository")
def test_the_real_cifar10_is_read(tmp_path):
    """Its first 400 rows, as they stand in the files: lossless WebP."""
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00005", "test-00000-of-00001"):
        table = parquet.read_table(SHARED / f"cifar10/{name}.parquet").slice(0, 400)
        parquet.write_table(table, tmp_path / f"data/{name}.parquet")
    train, test = images(tmp_path / "data", RGB, cache=tmp_path / "cache")
    assert train[0].shape == test[0].shape == (400, 3, 32, 32)
    assert train[1][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # frog, truck, truck, deer, …
    assert test[1][:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    mean = train[0].double().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.03)


DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_real_fashion_mnist_is_read(tmp_path):
    train, test = images(DEBIAN, GRAY)
    assert (train[0].shape, test[0].shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert train[1].bincount().tolist() == [6000] * 10
    assert float(train[0].float().mean()) / 255 == pytest.approx(0.2860, abs=1e-4)
    assert float(train[0].float().std()) / 255 == pytest.approx(0.3530, abs=1e-4)
