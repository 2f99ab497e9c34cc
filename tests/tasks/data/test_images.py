"""Reading images: every layout gives the same pixels, and every broken one its own sentence."""

import gzip
import shutil
import sys
import zipfile
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
    "binary, one below": (lambda folder, *data: write_binary(folder / "cifar-10-batches-bin", *data), RGB),
    "npz": (lambda folder, *data: write_npz(folder / "any.npz", *data), RGB),
    "npz, channels last": (lambda folder, *data: write_npz(folder / "any.npz", *data, last=True), RGB),
    "npz, gray": (lambda folder, *data: write_npz(folder / "mnist.npz", *data), GRAY),
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


def test_an_npz_file_may_be_named_itself(tmp_path):
    train, test = pictures(12, GRAY), pictures(10, GRAY)
    write_npz(tmp_path / "a.npz", train, test)
    assert same(images(tmp_path / "a.npz", GRAY).train, train)


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


def test_other_color_modes_are_converted(tmp_path):
    train = pictures(10, GRAY)
    write_parquet(tmp_path, train, train, column="image")
    found = images(tmp_path, (3, 28, 28), cache=tmp_path / "cache").train[0]
    assert torch.equal(found, torch.from_numpy(train[0]).expand(-1, 3, -1, -1))


def put(folder, name, content):
    (folder / name).write_bytes(content)


def drop(folder, name):
    next(iter(folder.glob(name))).unlink()


def rows(folder, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), folder / "train-00000-of-00002.parquet")


def picture(shape=RGB):
    return {"bytes": encoded(np.zeros(shape, np.uint8), "png"), "path": None}


IDX = "train-images-idx3-ubyte"
NAMES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
FIRST = "train-00000-of-00002.parquet"
NPZ = {"x_train": np.zeros((10, 3, 32, 32), np.uint8), "y_train": np.arange(10)}
NPZ |= {"x_test": NPZ["x_train"], "y_test": NPZ["y_train"]}

BROKEN = {
    "no images": ("idx", lambda f: drop(f, IDX), f"must be a folder with {NAMES}; got '{{folder}}' without {IDX}."),
    "no labels": ("idx", lambda f: drop(f, "t10k-labels*"), "without t10k-labels-idx1-ubyte."),
    "not gzip": (
        "idx",
        lambda f: (drop(f, IDX), put(f, f"{IDX}.gz", b"PK")),
        f"{IDX}.gz cannot be read (BadGzipFile: Not a gzipped file (b'PK')). Download it again.",
    ),
    "half a gzip file": (
        "idx",
        lambda f: (drop(f, IDX), put(f, f"{IDX}.gz", gzip.compress(bytes(9999))[:-9])),
        f"{IDX}.gz cannot be read (EOFError: Compressed file ended",
    ),
    "another magic number": (
        "idx",
        lambda f: put(f, IDX, b"\0\0\x0d\x03" + bytes(12)),
        f"{IDX} must be an idx file of bytes, beginning with 00 00 08, got 00 00 0d.",
    ),
    "an empty idx file": ("idx", lambda f: put(f, IDX, b""), "beginning with 00 00 08, got ."),
    "a short idx file": (
        "idx",
        lambda f: put(f, IDX, idx_bytes(np.zeros((24, 28, 28)))[:-5]),
        f"{IDX} must have 24 × 28 × 28 values, got 18811 bytes.",
    ),
    "an idx file without sizes": ("idx", lambda f: put(f, IDX, b"\0\0\x08\x03\0\0"), f"{IDX} must have"),
    "other sizes": (
        "idx",
        lambda f: put(f, IDX, idx_bytes(np.zeros((24, 8, 8)))),
        f"images in {IDX} must be 28 × 28 pixels, got 8 × 8.",
    ),
    "fewer labels": (
        "idx",
        lambda f: put(f, "train-labels-idx1-ubyte", idx_bytes(np.zeros(23))),
        f"there must be as many images as labels, at least one, got 24 and 23 ({IDX}).",
    ),
    "a label too many": (
        "idx",
        lambda f: put(f, "train-labels-idx1-ubyte", idx_bytes(np.arange(24))),
        f"labels must be 0 to 9, got 10 ({IDX}).",
    ),
    "no test batch": ("binary", lambda f: drop(f, "test_batch.bin"), "got '{folder}' without test_batch.bin."),
    "half a row": (
        "binary",
        lambda f: put(f, "data_batch_1.bin", bytes(3073 * 5 + 1)),
        "data_batch_1.bin must have 3073 bytes per image, got 15366 in all. Download it again.",
    ),
    "an empty batch": ("binary", lambda f: put(f, "test_batch.bin", b""), "3073 bytes per image, got 0 in all."),
    "a wrong label in a batch": (
        "binary",
        lambda f: put(f, "test_batch.bin", b"\x0b" + bytes(3072)),
        "labels must be 0 to 9, got 11 (test_batch.bin).",
    ),
    "no npz": (
        "npz",
        lambda f: put(f, "any.npz", b"PK\3\4 or so"),
        "any.npz cannot be read (",
    ),
    "a pickle for an npz": (
        "npz",
        lambda f: np.savez(f / "any.npz", **(NPZ | {"x_train": np.array([{}])})),
        "any.npz cannot be read (ValueError: Object arrays",
    ),
    "no answers": (
        "npz",
        lambda f: np.savez(f / "any.npz", x_train=NPZ["x_train"]),
        "any.npz must hold x_train, y_train, x_test, y_test, got x_train.",
    ),
    "floats": (
        "npz",
        lambda f: np.savez(f / "any.npz", **(NPZ | {"x_test": np.zeros((10, 3, 32, 32))})),
        "x_test in any.npz must be whole numbers, got float64.",
    ),
    "signed pixels": (
        "npz",
        lambda f: np.savez(f / "any.npz", **(NPZ | {"x_test": np.zeros((10, 3, 32, 32), int)})),
        "pixels in x_test in any.npz must be uint8, from 0 to 255, got torch.int64.",
    ),
    "gray for color": (
        "npz",
        lambda f: np.savez(f / "any.npz", **(NPZ | {"x_test": np.zeros((10, 32, 32), np.uint8)})),
        "images in x_test in any.npz must be 3 × 32 × 32 pixels, got 32 × 32.",
    ),
    "no test file": ("parquet", lambda f: drop(f, "test*"), "got '{folder}' without test*.parquet."),
    "no parquet": (
        "parquet",
        lambda f: put(f, FIRST, b"PAR1 or so"),
        f"{FIRST} cannot be read (",
    ),
    "other columns": (
        "parquet",
        lambda f: rows(f, img=[picture()], fine_label=[3]),
        f"{FIRST} must have the columns img or image, label, got img, fine_label.",
    ),
    "no image": (
        "parquet",
        lambda f: rows(f, img=[picture(), {"bytes": b"GIF", "path": None}], label=[1, 2]),
        f"row 1 of {FIRST} must hold the bytes of an image file, and cannot be decoded (cannot identify image file",
    ),
    "nothing for an image": (
        "parquet",
        lambda f: rows(f, img=[picture(), None], label=[1, 2]),
        f"row 1 of {FIRST} must hold the bytes of an image file, and cannot be decoded (",
    ),
    "half an image": (
        "parquet",
        lambda f: rows(f, img=[{"bytes": picture()["bytes"][:60], "path": None}], label=[1]),
        f"row 0 of {FIRST} must hold the bytes of an image file, and cannot be decoded (",
    ),
    "a larger image": (
        "parquet",
        lambda f: rows(f, img=[picture((3, 32, 33))], label=[1]),
        f"images must be 32 × 32 pixels, got 32 × 33 in row 0 of {FIRST}.",
    ),
    "a row without label": (
        "parquet",
        lambda f: rows(f, img=[picture(), picture()], label=[1, None]),
        f"the column label of {FIRST} must be a whole number in every row.",
    ),
    "a label that is no class": (
        "parquet",
        lambda f: rows(f, img=[picture()], label=[-1]),
        f"labels must be 0 to 9, got -1 ({FIRST}).",
    ),
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


@pytest.mark.parametrize(
    ("package", "text"),
    [
        (
            "pyarrow",
            "parquet files need pyarrow, which is not installed. Use pip install -c constraints.txt -e '.[data]'.",
        ),
        ("PIL", "encoded images need Pillow, which is not installed. Use pip install -c constraints.txt -e '.[data]'."),
    ],
)
def test_a_missing_package_is_named(package, text, tmp_path, monkeypatch):
    write_parquet(tmp_path, pictures(10, RGB), pictures(10, RGB))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Invalid) as caught:
        images(tmp_path, RGB, cache=tmp_path / "cache")
    assert str(caught.value) == text


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
    shutil.copytree(DEBIAN, tmp_path / "part", ignore=shutil.ignore_patterns("*labels*"))
    with pytest.raises(Invalid, match="without train-labels-idx1-ubyte"):
        images(tmp_path / "part", GRAY)


def test_members_of_an_npz_that_are_no_arrays_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as packed:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            packed.writestr(f"{name}.npy", b"no array")
    with pytest.raises(Invalid, match=r"npz|cannot be read"):
        images(tmp_path, (1, 28, 28))
