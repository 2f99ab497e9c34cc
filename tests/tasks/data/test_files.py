"""Data that is no file is refused in a sentence, and is never read without end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tardygrad as tg
from tests.tasks.test_causal_lm import task as causal_lm

RULE = "data must be in files, got '{}', which is a folder, a pipe, a device or a broken link."
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "text": ("a.txt", lambda folder: tg.tasks.lm(clients=2, text=str(folder))),
    "causal_lm": ("a.txt", lambda folder: causal_lm(folder, data=str(folder), clients=2)),
    "parquet": ("rte/train.parquet", lambda folder: tg.tasks.glue(clients=2, name="rte", data=str(folder))),
    "tsv": ("RTE/train.tsv", lambda folder: tg.tasks.glue(clients=2, name="rte", data=str(folder))),
    "images": ("train.parquet", lambda folder: tg.tasks.cifar10(clients=2, data=str(folder), model="cnn")),
    "binary": ("data_batch_1.bin", lambda folder: tg.tasks.cifar10(clients=2, data=str(folder), model="cnn")),
    "npz": ("a.npz", lambda folder: tg.tasks.cifar10(clients=2, data=str(folder), model="cnn")),
}
BESIDE = {
    "parquet": "rte/validation.parquet",
    "tsv": "RTE/dev.tsv",
    "images": "test.parquet",
    "binary": "test_batch.bin",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_pipe_a_folder_and_a_device_are_no_data(reader: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    for each in (path, *([tmp_path / BESIDE[reader]] if reader in BESIDE else [])):
        each.parent.mkdir(exist_ok=True)
        make(each)
    with pytest.raises(tg.Invalid) as caught:
        read(tmp_path)
    assert str(caught.value) == RULE.format(path)


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "fine"}\n{"text": "\\ud800 hello"}\n', encoding="utf-8")
    rule = (
        rf"line 2 of {tmp_path.name}/texts.jsonl must be Unicode text, got '\\ud800', which is half of a surrogate pair"
    )
    with pytest.raises(tg.Invalid, match=rule):
        causal_lm(tmp_path, clients=2)
