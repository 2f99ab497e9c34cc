"""The cache: made once, found again, made anew when anything differs or is broken, by many at once."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tardygrad.errors import Invalid
from tardygrad.tasks.data import cache
from tardygrad.tasks.data.cache import cached, fingerprint


class Maker:
    """Makes tensors, and counts how often."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return {
            "pixels": torch.arange(24, dtype=torch.uint8).view(2, 3, 4),
            "labels": torch.tensor([3, 1]),
            "none": torch.empty(0, 5),
            "one": torch.tensor(2.5),
            "half": torch.ones(3, dtype=torch.bfloat16),
        }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def files(folder):
    return sorted(path.suffix for path in Path(folder).iterdir())


def test_what_was_made_is_found_again(tmp_path):
    make = Maker()
    first, again = (cached("images", make, "key", folder=tmp_path / "deep/er") for _ in range(2))
    assert make.times == 1
    assert same(first, make())
    assert same(again, first)
    assert files(tmp_path / "deep/er") == [".lock", ".safetensors"]


def test_another_key_is_another_file(tmp_path):
    make = Maker()
    source = tmp_path / "a.bin"
    source.write_bytes(b"pixels")
    keys = [("a", "b"), ("ab",), ("b", "a"), (torch.zeros(2),), (torch.zeros(2, 1),), (torch.zeros(2).long(),)]
    keys += [(torch.ones(2),), (source,), ()]
    for key in keys:
        cached("images", make, *key, folder=tmp_path)
    cached("features", make, folder=tmp_path)
    assert make.times == len(keys) + 1
    source.write_bytes(b"pixelz")
    cached("images", make, source, folder=tmp_path)
    source.rename(tmp_path / "b.bin")
    cached("images", make, tmp_path / "b.bin", folder=tmp_path)
    assert make.times == len(keys) + 3


def test_a_files_place_is_no_part_of_its_fingerprint(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for folder in (tmp_path, tmp_path / "elsewhere"):
        (folder / "a.bin").write_bytes(b"x" * 3_000_000)
    assert fingerprint(tmp_path / "a.bin") == fingerprint(tmp_path / "elsewhere/a.bin")


def test_another_version_makes_everything_anew(tmp_path, monkeypatch):
    make = Maker()
    cached("images", make, folder=tmp_path)
    monkeypatch.setattr(cache, "VERSION", 99)
    cached("images", make, folder=tmp_path)
    assert make.times == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def emptied(path):
    path.write_bytes(b"")


def without_checksum(path):
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), path)


@pytest.mark.parametrize("break_", [cut, flipped, emptied, without_checksum])
def test_a_broken_file_is_made_again(break_, tmp_path):
    make = Maker()
    cached("images", make, folder=tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    break_(path)
    assert same(cached("images", make, folder=tmp_path), make())
    assert make.times == 3  # and one of them was ours
    cached("images", make, folder=tmp_path)
    assert make.times == 3


def test_threads_make_it_once(tmp_path):
    make = Maker()
    together = threading.Barrier(4, timeout=30)

    def share(_):
        together.wait()
        return cached("images", make, folder=tmp_path)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(share, range(4)))
    assert make.times == 1
    assert all(same(one, results[0]) for one in results)


def _share(folder, log):
    def make():
        with log.open("a") as file:
            file.write("made\n")
        return Maker()()

    assert same(cached("images", make, "key", folder=folder), Maker()())


def test_processes_make_it_once(tmp_path):
    processes = [
        multiprocessing.get_context("fork").Process(target=_share, args=(tmp_path, tmp_path / "log")) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "made\n"
    assert not list(tmp_path.glob("*.draft"))


def test_a_failed_make_leaves_nothing_and_is_told_as_it_is(tmp_path):
    def fail():
        raise OSError("no such data")

    with pytest.raises(OSError, match="no such data"):
        cached("images", fail, folder=tmp_path)
    assert files(tmp_path) == [".lock"]
    assert same(cached("images", Maker(), folder=tmp_path), Maker()())


def test_a_folder_that_was_asked_for_must_work_and_the_home_directory_need_not(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Invalid) as caught:
        cached("images", Maker(), folder=blocked)
    text = f"`cache` must be a writable folder, got {str(blocked)!r} (File exists)."
    assert str(caught.value) == text
    monkeypatch.setattr(cache.Path, "home", lambda: blocked)
    make = Maker()
    for _ in range(2):
        assert same(cached("images", make), Maker()())
    assert make.times == 2


def test_a_full_disk_is_told_of_a_folder_that_was_asked_for(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "save_file", full)
    with pytest.raises(Invalid, match=r"must be a writable folder, got .* \(No space left on device\)\."):
        cached("images", Maker(), folder=tmp_path)
    assert files(tmp_path) == [".lock"]
    monkeypatch.setattr(cache.Path, "home", lambda: tmp_path)
    assert same(cached("images", Maker()), Maker()())


def test_the_home_directory_is_the_default_and_must_be_known(tmp_path, monkeypatch):
    monkeypatch.setattr(cache.Path, "home", lambda: tmp_path)
    cached("images", Maker())
    assert files(tmp_path / ".cache/tardygrad") == [".lock", ".safetensors"]

    def homeless():
        raise RuntimeError

    monkeypatch.setattr(cache.Path, "home", homeless)
    with pytest.raises(Invalid) as caught:
        cached("images", Maker())
    assert str(caught.value) == "the cache needs a home directory, got none. Give cache=FOLDER."
