"""The cache: computed once, found again, computed anew when anything differs or is damaged, by many at once."""

import multiprocessing

import pytest
import torch

from tardygrad.errors import Invalid
from tardygrad.tasks.data import files
from tardygrad.tasks.data.files import cached, fingerprint


class Maker:
    """Makes tensors, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return {
            "pixels": torch.arange(24, dtype=torch.uint8).view(2, 3, 4),
            "half": torch.ones(3, dtype=torch.bfloat16),
        }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_another_key_is_another_file(tmp_path):
    make = Maker()
    source = tmp_path / "a.bin"
    source.write_bytes(b"pixels")
    keys = [("a", "b"), ("ab",), ("b", "a"), (torch.zeros(2),), (torch.zeros(2, 1),), (torch.zeros(2).long(),)]
    keys += [(torch.ones(2),), (source,), ()]
    for key in [*keys, *keys]:
        assert same(cached("images", make, *key, folder=tmp_path / "deep/er"), Maker()())
    cached("features", make, folder=tmp_path / "deep/er")
    assert make.times == len(keys) + 1
    before = fingerprint(source)
    source.write_bytes(b"pixelz")
    assert fingerprint(source) != before
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.bin").write_bytes(b"pixels")
    assert fingerprint(tmp_path / "elsewhere/a.bin") == before


@pytest.mark.parametrize("keep", [-3, 0])
def test_a_damaged_file_is_computed_again(keep, tmp_path):
    make = Maker()
    cached("images", make, folder=tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:keep])
    for _ in range(2):
        assert same(cached("images", make, folder=tmp_path), Maker()())
    assert make.times == 2


def _share(folder, log):
    def make():
        with log.open("a") as file:
            file.write("made\n")
        return Maker()()

    assert same(cached("images", make, "key", folder=folder), Maker()())


def test_processes_compute_it_once(tmp_path):
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=_share, args=(tmp_path, tmp_path / "log")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"
    assert not list(tmp_path.glob("*.draft"))


def test_the_folder_must_be_writable_and_is_below_the_home_directory(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Invalid) as caught:
        cached("images", Maker(), folder=blocked)
    rule = "`cache` must be a writable folder, got {!r} ({}). Give cache=FOLDER."
    assert str(caught.value) == rule.format(str(blocked), "File exists")
    monkeypatch.setattr(files.Path, "home", lambda: tmp_path)
    cached("images", Maker())
    assert len(list((tmp_path / ".cache/tardygrad").glob("images-*.safetensors"))) == 1

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(Invalid, match=r"got .* \(No space left on device\)\."):
        cached("other", Maker())
