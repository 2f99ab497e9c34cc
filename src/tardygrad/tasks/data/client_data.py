"""The data of clients: one dataset each, read batch by batch, or a function of the job that returns its batches.

Nothing is read before a job needs it, and a client's dataset is opened only in the process that does its work. Batches
depend on the job alone: rows come from its random stream, and each step's rows are read and collated with random
numbers of their own key, so that random augmentation and masking repeat, whichever process reads them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tardygrad import streams
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid, check_integer
from tardygrad.seeding import seed, seeded, states
from tardygrad.tasks.forward import first_parameter

Collate = Callable[[list[Any]], Any]
"""A list of rows to a batch."""


class Loading(NamedTuple):
    """How rows become batches, mostly as in `DataLoader`."""

    batch_size: int = 32
    accumulate: int = 1  # batches per local step
    drop_last: bool = False
    num_workers: int = 0
    pin_memory: bool = False
    collate: Collate | None = None


def batch_rows(
    job: Job, rows: int, loading: Loading, lengths: np.ndarray[Any, Any] | None = None
) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """For each local step of a job, the row numbers of its `accumulate` batches; rows are shuffled in every epoch.

    With the `lengths` of rows, a batch has rows of similar length, and the batches are shuffled.
    """
    rng, size = job.stream("batches"), loading.batch_size

    def one_pass() -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
        order = rng.permutation(rows)
        if loading.drop_last and rows > size:
            order = order[: rows - rows % size]
        if lengths is not None:
            order = order[np.argsort(lengths[order], kind="stable")]
        batches = np.split(order, range(size, len(order), size))
        if lengths is not None:
            batches = [batches[number] for number in rng.permutation(len(batches))]
        return _groups(batches, loading.accumulate)

    if job.steps is None:
        return chain.from_iterable(one_pass() for _ in range(job.epochs or 0))
    return islice(chain.from_iterable(iter(one_pass, None)), job.steps)


class Request(NamedTuple):
    """The rows of a local step, for the process that reads them."""

    client: int
    key: int  # of the random numbers that the dataset and `collate` draw
    batches: list[list[int]]


class Reader(Dataset[Any]):
    """Turns a request into batches; a `DataLoader` calls it, possibly in other processes."""

    def __init__(self, datasets: Datasets, collate: Collate) -> None:
        self.datasets, self.collate = datasets, collate

    def __getitems__(self, request: Request) -> tuple[Any, ...]:
        dataset = self.datasets[request.client]
        with seeded(request.key), no_early_end():
            if hasattr(dataset, "__getitems__"):
                rows = [dataset.__getitems__(numbers) for numbers in request.batches]
            else:
                rows = [[dataset[number] for number in numbers] for numbers in request.batches]
            return tuple(_collated(batch, self.collate) for batch in rows)


class Datasets:
    """One dataset per client.

    Args:
        source: a sequence of datasets, a mapping from client ids to datasets, or a function from a client's number, or
            its id if `clients` has ids, to its dataset. The function is called once in each process that needs it.
        clients: for a function: the number of clients, or their ids.
    """

    def __init__(self, source: Any, clients: int | Sequence[str] | None = None) -> None:
        self.open = source if callable(source) else None
        self._opened: dict[int, Any] = {}  # by client
        self._forget()
        if self.open is not None:
            self.clients, self.ids = count_clients(clients)
            return
        if clients is not None:
            raise Invalid(f"`clients` is only for `data` that is a function, got clients={clients!r}. Leave it out.")
        self.ids = tuple(map(str, source)) if isinstance(source, Mapping) else None
        if self.ids and len(set(self.ids)) < len(self.ids):
            raise Invalid(f"the keys of `data` must be distinct as text, got {', '.join(map(repr, source))}.")
        own = list(source.values()) if isinstance(source, Mapping) else list(source)
        if not own:
            raise Invalid("`data` must have a dataset for each client, got none.")
        self.clients = len(own)
        self._opened = {client: _checked(dataset, self._name(client)) for client, dataset in enumerate(own)}

    def _forget(self) -> None:
        """Drop what belongs to another process: open files, positions in streams, and loaders."""
        self._process = os.getpid()
        self._positions: dict[int, tuple[int, int, Iterator[Any]]] = {}  # of clients in streams: seed, row, the rest
        self._inherited = getattr(self, "_loaders", None)  # not deleted here: their processes are another's children
        self._loaders: dict[int, Any] = {}  # by thread
        if self.open is not None:
            self._opened = {}

    def _name(self, client: int) -> str:
        return f"client {client}" if self.ids is None else f"client {self.ids[client]!r}"

    def __getitem__(self, client: int) -> Any:
        """The client's dataset; opened if this process has not opened it yet."""
        if self._process != os.getpid():  # this one was forked
            self._forget()
        if client not in self._opened and self.open is not None:
            with seeded(streams.key(0, "open", client)):
                dataset = self.open(self.ids[client] if self.ids else client)
            self._opened[client] = _checked(dataset, self._name(client))
        return self._opened[client]

    def __repr__(self) -> str:
        sizes = [len(dataset) for dataset in self._opened.values() if not is_stream(dataset)]
        rows = f", rows={sum(sizes)}, each={min(sizes)}..{max(sizes)}" if len(sizes) == self.clients else ""
        return f"Datasets(clients={self.clients}{rows})"

    def __getstate__(self) -> dict[str, Any]:
        own = {"_loaders", "_inherited", "_positions", "_process"} | ({"_opened"} if self.open is not None else set())
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def steps(self, job: Job, loading: Loading) -> Iterator[tuple[Any, ...]]:
        """The batches of each local step."""
        dataset = self[job.client]
        if is_stream(dataset):
            return self._stream(job, dataset, loading)
        requests = (
            Request(job.client, _read_key(job, step), [batch.tolist() for batch in rows])
            for step, rows in enumerate(batch_rows(job, len(dataset), loading))
        )
        return self._load(requests, loading)

    def _load(self, requests: Iterator[Request], loading: Loading) -> Iterator[tuple[Any, ...]]:
        """Read requests through this thread's loader, whose processes live on from job to job."""
        thread = threading.get_ident()
        for ended in self._loaders.keys() - {each.ident for each in threading.enumerate()}:
            self._loaders.pop(ended, None)  # ends its processes
        loader: Any = self._loaders.get(thread)
        if loader is None:
            loader = self._loaders[thread] = DataLoader(
                Reader(self, loading.collate or default_collate),
                batch_sampler=_Requests(),  # type: ignore[arg-type]
                collate_fn=_as_it_is,
                num_workers=loading.num_workers,
                pin_memory=loading.pin_memory,
                persistent_workers=loading.num_workers > 0,
                generator=torch.Generator(),  # else it would draw from torch's global one
            )
        loader.batch_sampler.requests = requests
        try:
            yield from loader
        except BaseException:  # an error, or a job that was given up: the loader may hold batches of it
            self._loaders.pop(thread, None)
            raise

    def _stream(self, job: Job, dataset: Any, loading: Loading) -> Iterator[tuple[Any, ...]]:
        """The next batches of a stream: a job begins where its client's last one ended, if all are equally long."""
        if job.steps is None:
            raise Invalid("a stream of rows has no epochs: use local_steps, got local_epochs.")
        if loading.num_workers:
            got = f"num_workers={loading.num_workers}"
            raise Invalid(f"a stream is read in the process that does the client's work, got {got}. Use num_workers=0.")
        each = loading.batch_size * loading.accumulate
        start = job.serial * job.steps * each
        *at, rows = self._positions.pop(job.client, (job.seed, -1, iter(())))
        if at != [job.seed, start]:
            rows = endless_rows(dataset, start, (job.seed, "stream", job.client))
        collate = loading.collate or default_collate
        for number in range(job.steps):
            with seeded(_read_key(job, number)):
                step = list(islice(rows, each))  # `endless_rows` seeds each row
                seed(_read_key(job, number))
                batches = tuple(_collated(list(batch), collate) for batch in _groups(step, loading.batch_size))
            yield batches
        self._positions[job.client] = job.seed, start + job.steps * each, rows


def is_stream(dataset: Any) -> bool:
    """Whether a dataset gives its rows one after the other, without numbers."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


def endless_rows(dataset: Any, start: int, key: tuple[int, str, int]) -> Iterator[Any]:
    """The rows of a stream from row `start` on; after its last row it begins again.

    Each row is read with random numbers of its own, so that a stream repeats from any row on. Call it within `seeded`.
    """
    passes, may_skip = 0, hasattr(dataset, "skip")
    while True:
        row, skip = (start, dataset.skip) if start and may_skip else (0, None)
        rows = iter(skip(start) if skip else dataset)
        read = False
        while True:
            seed(streams.key(*key, passes, row))
            before = states() if skip and row == start else None
            try:
                value = next(rows)
            except StopIteration:
                break
            if before is not None and before != states():  # rows draw, perhaps also those that were skipped
                may_skip = False
                break
            row += 1
            if row > start:
                read = True
                yield value
        if read:
            passes, start = passes + 1, 0
        if read or (skip and not may_skip):
            continue
        length = sum(1 for _ in dataset) if skip else row  # the stream has `start` rows or fewer
        if not length:
            raise Invalid("a stream must have at least one row, got none.")
        passes, start = passes + start // length, start % length


class OwnBatches:
    """Batches from a function of the job.

    Args:
        source: from a job to an iterable of batches; must depend on nothing but the job.
        clients: the number of clients, or their ids.
    """

    def __init__(self, source: Callable[[Job], Iterable[Any]], clients: int | Sequence[str] | None) -> None:
        self.source = source
        self.clients, self.ids = count_clients(clients)

    def steps(self, job: Job, loading: Loading) -> Iterator[tuple[Any, ...]]:
        """The batches of each local step."""
        if job.steps is None:
            raise Invalid("batches of a function of the job have no epochs: use local_steps, got local_epochs.")
        with seeded(_read_key(job, 0)):
            batches = self.source(job.copied())
        if not isinstance(batches, Iterable):
            got = f"{type(batches).__name__} for client {job.client}"
            raise Invalid(f"`data` as a function of the job must return an iterable of batches, got {got}.")
        steps = _groups(batches, loading.accumulate)
        for number in range(1, job.steps + 1):
            with seeded(_read_key(job, number)):  # so that the job decides what the function draws
                step = next(steps, None)
            if step is None:
                got = f"{number - 1} for client {job.client}"
                raise Invalid(f"`data` must return batches for {job.steps} local steps, got {got}.")
            yield step


def client_data(data: Any, clients: int | Sequence[str] | None) -> Datasets | OwnBatches:
    """Data in any form but `Shards`: a dataset per client, or a function of the client or of the job.

    A function whose first parameter is named `job` gets the job and returns batches; any other gets the client.
    """
    if isinstance(data, str):
        raise Invalid(f"`data` must be datasets or a function, got the text {data!r}. Open what it names first.")
    tensors = isinstance(data, tuple | list) and any(isinstance(item, Tensor | np.ndarray) for item in data)
    if tensors or isinstance(data, Dataset) or not (callable(data) or isinstance(data, Sequence | Mapping)):
        fix = "Split it with tg.shard(data, clients=...), or give a list with a dataset for each client."
        got = "tensors" if tensors else f"one {type(data).__name__}"
        raise Invalid(f"`data` must say which rows each client has, got {got}. {fix}")
    if callable(data) and not isinstance(data, Mapping):
        return OwnBatches(data, clients) if first_parameter(data) == "job" else Datasets(data, clients)
    return Datasets(data, clients)


class _Requests:
    """The `batch_sampler` of a loader: the requests of the present job."""

    requests: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.requests


def _collated(rows: list[Any], collate: Collate) -> Any:
    """A batch of rows."""
    try:
        return collate(rows)
    except (RuntimeError, TypeError, KeyError) as error:
        if collate is not default_collate:
            raise
        fix = "Give the task collate=..., which makes a batch of a list of rows, for example by padding."
        raise Invalid(f"the rows of a batch must have the same structure and shapes: {error}. {fix}") from error


def _as_it_is(batches: Any) -> Any:
    """The `collate_fn` of a loader whose reader has made the batches."""
    return batches


@contextmanager
def no_early_end() -> Iterator[None]:
    """Refuse a `StopIteration` of the user's code, which would end the loop over a loader without a word."""
    try:
        yield
    except StopIteration as error:
        raise Invalid("a dataset must return a row for every number below its length, got StopIteration.") from error


def length(dataset: Any, what: str) -> int:
    """The number of rows of a dataset; raises `Invalid` if it does not say."""
    try:
        return len(dataset)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise Invalid(f"{what} must have a length that Python can read, got {got}.") from error


def _read_key(job: Job, step: int) -> int:
    """The key of the random numbers that a dataset draws while the rows of a step are read."""
    return streams.key(job.seed, "read", job.client, job.serial, step)


def count_clients(clients: int | Sequence[str] | None) -> tuple[int, tuple[str, ...] | None]:
    """The number of clients, and their ids if they have any."""
    if clients is None:
        raise Invalid("a function as `data` needs `clients`: their number, or a list of their ids.")
    if isinstance(clients, Sequence) and not isinstance(clients, str):
        ids = tuple(map(str, clients))
        if not ids or len(set(ids)) < len(ids):
            raise Invalid(
                f"`clients` must be distinct ids, at least one, got {len(ids)}, {len(set(ids))} of them distinct."
            )
        return len(ids), ids
    check_integer("clients", clients)
    return clients, None  # type: ignore[return-value]


def checked_counts(samples: Sequence[int] | None, clients: int) -> tuple[int, ...] | None:
    """The numbers of training rows that a task was given; raises `Invalid` unless there is one for each client."""
    if samples is not None and len(samples) != clients:
        raise Invalid(f"`samples` must be a number for each of the {clients} clients, got {len(samples)}.")
    return None if samples is None else tuple(samples)


def unknown_counts(what: str) -> Invalid:
    """The error if rows cannot be counted."""
    fix = "Give the task samples=[...], a number for each client."
    return Invalid(f'weight_by="samples" needs the number of each client\'s samples, which {what} does not have. {fix}')


def _checked(dataset: Any, client: str) -> Any:
    """Return a client's dataset, or raise `Invalid` if it is not one."""
    if isinstance(dataset, DataLoader | Iterator):
        fix = "Give its dataset, which the task loads, or an iterable that begins anew each time."
    elif is_stream(dataset):
        return dataset
    elif isinstance(dataset, tuple) and all(isinstance(item, Tensor) for item in dataset):
        fix = "Use TensorDataset(*tensors), or tg.shard for the tensors of all clients together."
    elif isinstance(dataset, str) or not hasattr(dataset, "__getitem__") or not isinstance(dataset, Sized):
        fix = "A dataset has a length, and rows dataset[0], dataset[1], …"
    elif length(dataset, f"the dataset of {client}"):
        return dataset
    else:
        raise Invalid(f"every client needs at least one row, got none for {client}. Leave that client out.")
    raise Invalid(f"every client needs a dataset, got {type(dataset).__name__} for {client}. {fix}")


T = TypeVar("T")


def _groups(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in tuples of `size`; the last may be smaller."""
    rest = iter(items)
    return iter(lambda: tuple(islice(rest, size)), ())
