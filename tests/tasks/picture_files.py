"""Small data sets written in every layout that `images` reads."""

import gzip
import io

import numpy as np
import torch

RGB, GRAY = (3, 32, 32), (1, 28, 28)


def pictures(rows, shape, seed=0):
    """Random pixels and labels; every label occurs."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, *shape), dtype=np.uint8), rng.permutation(np.arange(rows) % 10)


def striped(rows, shape, seed=0):
    """The higher the label, the larger the bright part of a noisy image."""
    pixels, labels = pictures(rows, shape, seed)
    pixels = pixels // 4
    for pixel, label in zip(pixels, labels, strict=True):
        pixel[:, : 2 * label + 2] += 150
    return pixels, labels


def idx_bytes(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_idx(folder, train, test, *, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in (("train", train), ("t10k", test)):
        for file, array in ((f"{name}-images-idx3-ubyte", pixels[:, 0]), (f"{name}-labels-idx1-ubyte", labels)):
            content = idx_bytes(array)
            path = folder / (f"{file}.gz" if packed else file)
            path.write_bytes(gzip.compress(content) if packed else content)


def write_binary(folder, train, test):
    folder.mkdir(parents=True, exist_ok=True)
    half = len(train[0]) // 2
    parts = {
        "data_batch_1": [part[:half] for part in train],
        "data_batch_2": [part[half:] for part in train],
        "test_batch": test,
    }
    for name, (pixels, labels) in parts.items():
        rows = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(len(pixels), -1)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_npz(path, train, test, *, last=False):
    (x, y), (u, v) = train, test
    if last:  # as Keras has it
        x, u, y, v = x.transpose(0, 2, 3, 1), u.transpose(0, 2, 3, 1), y[:, None], v[:, None]
    np.savez(path, x_train=x, y_train=y, x_test=u, y_test=v)


def encoded(pixels, kind):
    from PIL import Image

    array = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, lossless=True) if kind == "webp" else Image.fromarray(array).save(out, kind)
    return out.getvalue()


def write_parquet(folder, train, test, *, column="img", kind="png"):
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    half = len(train[0]) // 2
    parts = {
        "train-00000-of-00002": [part[:half] for part in train],
        "train-00001-of-00002": [part[half:] for part in train],
        "test-00000-of-00001": test,
    }
    for name, (pixels, labels) in parts.items():
        cells = [{"bytes": encoded(one, kind), "path": None} for one in pixels]
        parquet.write_table(pa.table({column: cells, "label": [int(y) for y in labels]}), folder / f"{name}.parquet")


def same(pair, expected):
    pixels, labels = expected
    return torch.equal(pair[0], torch.from_numpy(pixels)) and torch.equal(pair[1], torch.from_numpy(labels).long())
