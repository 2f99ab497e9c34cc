"""Data of clients: datasets of any rows, opened where they are needed, read the same by any number of processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.tasks.data.client_data import Datasets, Loading, batch_rows, client_data

X = torch.zeros(1)


def job(client: int = 0, serial: int = 0, *, steps: int | None = 3, epochs: int | None = None) -> Job:
    return Job(client, serial, 0, X, steps, epochs, seed=1)


class Numbers(Dataset[Any]):
    """Rows {"row": i, "drawn": three random numbers}."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < self.count:
            raise IndexError(row)
        drawn = [float(torch.rand(())), np.random.random(), random.random()]
        return {"row": row, "drawn": torch.tensor(drawn)}


def rows_of(steps: Iterator[tuple[Any, ...]]) -> list[list[list[int]]]:
    return [[batch["row"].tolist() for batch in step] for step in steps]


def test_an_epoch_reads_every_row_of_the_client_once() -> None:
    data = Datasets([Numbers(10), Numbers(7)])
    for client, count in ((0, 10), (1, 7)):
        steps = rows_of(data.steps(job(client, steps=None, epochs=2), Loading(batch_size=4)))
        sizes = [len(batch) for (batch,) in steps]
        assert sizes == 2 * ([4, 4, 2] if client == 0 else [4, 3])
        read = [row for (batch,) in steps for row in batch]
        assert sorted(read[:count]) == sorted(read[count:]) == list(range(count))
        assert read[:count] != read[count:]


@pytest.mark.parametrize(("drop", "sizes"), [(False, [[4, 4], [2]]), (True, [[4, 4]])])
def test_a_local_step_may_have_several_batches_and_a_small_last_one_be_left_out(drop: bool, sizes: list[Any]) -> None:
    loading = Loading(batch_size=4, accumulate=2, drop_last=drop)
    assert [[len(batch) for batch in step] for step in batch_rows(job(steps=None, epochs=1), 10, loading)] == sizes
    assert [[len(batch) for batch in step] for step in batch_rows(job(steps=3), 10, loading)] == (3 * sizes)[:3]


def test_rows_and_random_numbers_are_those_of_the_job_in_any_number_of_processes() -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    one, two = (
        [
            (batch["row"].tolist(), batch["drawn"].tolist())
            for serial in range(2)
            for (batch,) in data.steps(job(serial=serial), Loading(batch_size=4, num_workers=workers))
        ]
        for workers, data in ((0, Datasets([Numbers(9)])), (2, Datasets([Numbers(9)])))
    )
    assert one == two
    assert len({tuple(row) for _, drawn in one for row in drawn}) == sum(len(rows) for rows, _ in one)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (np.random.get_state()[1].tolist(), random.getstate())


def test_reading_processes_of_threads_that_have_ended_end_when_another_one_reads() -> None:
    data, together, before = Datasets([Numbers(9)]), threading.Barrier(3), set(active_children())

    def read(all_at_once: bool) -> None:
        list(data.steps(job(), Loading(batch_size=4, num_workers=1)))
        if all_at_once:
            together.wait()

    for threads, processes in ((3, 3), (1, 1)):
        readers = [threading.Thread(target=read, args=(threads == 3,)) for _ in range(threads)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert len(set(active_children()) - before) == processes


def test_a_function_opens_a_clients_dataset_once_and_in_no_other_process() -> None:
    opened: list[str] = []

    def open_dataset(client: str) -> Numbers:
        opened.append(client)
        return Numbers(4)

    data = client_data(open_dataset, ["anna", "ben"])
    assert (data.clients, data.ids, opened) == (2, ("anna", "ben"), [])
    for serial in range(3):
        assert len(list(data.steps(job(1, serial), Loading(batch_size=2)))) == 3
    assert opened == ["ben"]
    assert "_opened" not in data.__getstate__()


def test_a_hugging_face_dataset_is_read_from_its_memory_mapped_file(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"row": list(range(9))}).save_to_disk(tmp_path)
    table = datasets.load_from_disk(tmp_path)
    assert table.cache_files
    read = rows_of(Datasets([table]).steps(job(steps=None, epochs=1), Loading(batch_size=4)))
    assert sorted(row for (batch,) in read for row in batch) == list(range(9))


class Stream(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length, self.passes = length, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(range(self.length))


def test_a_stream_goes_on_where_the_clients_last_job_ended_and_begins_again_at_its_end() -> None:
    loading = Loading(batch_size=2, accumulate=2)
    jobs = [job(serial=serial, steps=2) for serial in range(3)]
    data = Datasets([Stream(10)])
    read = [row for one in jobs for step in data.steps(one, loading) for batch in step for row in batch.tolist()]
    assert read == [i % 10 for i in range(24)]
    for one in reversed(jobs):  # each anew, as after a resume
        fresh = [row for step in Datasets([Stream(10)]).steps(one, loading) for batch in step for row in batch.tolist()]
        assert fresh == read[8 * one.serial : 8 * one.serial + 8]
    with pytest.raises(tg.Invalid, match="a stream of rows has no epochs"):
        list(data.steps(job(steps=None, epochs=1), loading))
    with pytest.raises(tg.Invalid, match="a stream must have at least one row"):
        list(Datasets([Stream(0)]).steps(jobs[0], loading))


class Shuffled(IterableDataset[Any]):
    """Ten rows in a random order, each with a random number."""

    def __iter__(self) -> Iterator[Tensor]:
        for row in torch.randperm(10).tolist():
            yield torch.tensor([float(row), random.random()])


def test_a_stream_repeats_its_random_numbers_from_any_job_on() -> None:
    loading, jobs = Loading(batch_size=3), [job(serial=serial, steps=2) for serial in range(4)]
    data = Datasets([Shuffled()])
    read = [torch.cat([batch for (batch,) in data.steps(one, loading)]) for one in jobs]
    for one, rows in zip(jobs, read, strict=True):  # each anew, as after a resume
        assert torch.equal(torch.cat([batch for (batch,) in Datasets([Shuffled()]).steps(one, loading)]), rows)
    passes = torch.cat(read)[:20].reshape(2, 10, 2)
    assert passes[0, :, 0].sort().values.tolist() == passes[1, :, 0].sort().values.tolist() == list(range(10))
    assert not torch.equal(passes[0], passes[1])


def test_a_function_of_the_job_returns_its_batches() -> None:
    def batches(job: Job) -> Iterator[Tensor]:
        rng = job.stream("mine")
        for _ in range(4):
            yield torch.from_numpy(rng.random(3))

    data = client_data(batches, 5)
    first, again = ([step[0].tolist() for step in data.steps(job(2), Loading())] for _ in range(2))
    assert (first == again, len(first), data.clients) == (True, 3, 5)
    with pytest.raises(tg.Invalid, match="have no epochs: use local_steps"):
        list(data.steps(job(steps=None, epochs=1), Loading()))
    with pytest.raises(tg.Invalid, match="must return batches for 9 local steps, got 4 for client 2"):
        list(data.steps(job(2, steps=9), Loading()))


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


@dataclass
class Example:
    image: Tensor
    label: Tensor


class Rows(Dataset[Any]):
    """Rows of one structure."""

    def __init__(self, make: Any, count: int = 12) -> None:
        self.make = make
        self.images = torch.randn(count, 3, generator=torch.Generator().manual_seed(count))
        self.labels = torch.arange(count) % 2

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Any:
        return self.make(self.images[row], self.labels[row])


def stack(rows: list[Example]) -> Example:
    return Example(torch.stack([row.image for row in rows]), torch.stack([row.label for row in rows]))


def of_names(module: nn.Module, batch: Any) -> Tensor:
    image, label = (batch["image"], batch["label"]) if isinstance(batch, dict) else (batch.image, batch.label)
    return nn.functional.cross_entropy(module(image), label)


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda x, y: (x, y), {"loss": nn.functional.cross_entropy}),
        (Pair, {"loss": nn.functional.cross_entropy}),
        (lambda x, y: {"input": x, "labels": y}, {"loss": nn.functional.cross_entropy}),
        (lambda x, y: {"image": x, "label": y}, {"loss": of_names}),
        (Example, {"loss": of_names, "collate": stack}),
    ],
    ids=["tuples", "named tuples", "names with labels", "names", "dataclasses"],
)
def test_rows_of_any_structure_train_like_tensors(make: Any, how: dict[str, Any]) -> None:
    module = nn.Linear(3, 2)
    lists = [Rows(make, count) for count in (12, 5, 1)]
    task = tg.TorchTask(module, data=lists, batch_size=4, **how)
    plain = tg.TorchTask(
        module,
        data=tg.Shards(
            (torch.cat([one.images for one in lists]), torch.cat([one.labels for one in lists])),
            (torch.arange(12), torch.arange(12, 17), torch.tensor([17])),
        ),
        loss=nn.functional.cross_entropy,
        batch_size=4,
    )
    method = tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=1, local_steps=3)
    for client in range(3):
        one = Job(client, 0, 0, task.init(0), 3, None, seed=0)
        assert torch.equal(tg.work(one, task, method).delta, tg.work(one, plain, method).delta)


@pytest.mark.parametrize(
    ("data", "clients", "text"),
    [
        (Numbers(3), None, "got one Numbers. Split it with tg.shard"),
        ([], None, "must have a dataset for each client, got none."),
        ([Numbers(3), Numbers(0)], None, "at least one row, got none for client 1"),
        (lambda client: Numbers(3), None, "needs `clients`: their number, or a list of their ids"),
        ("abc", None, "got the text 'abc'. Open what it names first."),
        ({1: Numbers(3), "1": Numbers(3)}, None, "the keys of `data` must be distinct as text, got 1, '1'."),
    ],
)
def test_wrong_data_is_refused_in_a_sentence(data: Any, clients: Any, text: str) -> None:
    with pytest.raises(tg.Invalid, match=text.replace("(", r"\(").replace(")", r"\)")):
        client_data(data, clients)
