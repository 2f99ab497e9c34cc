"""Sharding: which rows of the data belong to which client.

Rows of tensors become `Shards`, which stay in memory; those of any other dataset are read when a job needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from tardygrad import streams
from tardygrad.constructors import checked
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid, check_choice, check_integer, check_number
from tardygrad.tasks.data.client_data import Datasets, Loading, batch_rows, length

How = Literal["iid", "dirichlet", "label"]
"""How clients differ: not at all, in their mix of labels, or in which few labels they have."""


class SplitSettings(TypedDict, total=False):
    """The settings of `shard` that tasks pass on."""

    how: How | None
    concentration: float | None
    labels_per_client: int
    balanced: bool


@dataclass(frozen=True, eq=False, repr=False)
class Shards:
    """Data and each client's rows. Made by `shard`, or directly from a split of your own."""

    data: tuple[Tensor, ...]  # inputs..., target
    rows: tuple[Tensor, ...]  # one index tensor per client
    ids: tuple[str, ...] | None = None  # of clients, if they have any
    lengths: Tensor | None = None  # of rows; if given, a batch has rows of similar length

    def __post_init__(self) -> None:
        count = len(tensors(self.data)[-1])
        if not self.rows or len(set(self.ids or range(self.clients))) != self.clients:
            got = "no client" if not self.rows else f"{len(set(self.ids or ()))} for {self.clients} clients"
            raise Invalid(f"a split must have a client, and an id of its own for each, got {got}.")
        for client, rows in enumerate(self.rows):
            if not isinstance(rows, Tensor) or rows.dim() != 1 or (rows.numel() and rows.dtype != torch.int64):
                got = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
                fix = "Use torch.as_tensor(rows)."
                raise Invalid(f"rows must be flat int64 tensors, got {got} for client {client}. {fix}")
            if rows.numel() == 0:
                got = f"none for client {client} ({count} rows, {self.clients} clients)"
                raise Invalid(f"every client needs at least one row, got {got}. Use fewer clients or a milder split.")
            if int(rows.min()) < 0 or int(rows.max()) >= count:
                raise Invalid(f"rows must be between 0 and {count - 1}, got others for client {client}.")

    @property
    def clients(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Shards:
        """The same with its data on a device."""
        return replace(self, data=tuple(tensor.to(device) for tensor in self.data))

    def steps(self, job: Job, loading: Loading) -> Iterator[tuple[tuple[Tensor, ...], ...]]:
        """The batches of each local step."""
        mine = self.rows[job.client]
        lengths = None if self.lengths is None else self.lengths[mine].numpy()
        for step in batch_rows(job, len(mine), loading, lengths):
            chosen = [mine[torch.from_numpy(batch)] for batch in step]
            yield tuple(tuple(tensor[rows] for tensor in self.data) for rows in chosen)

    def __repr__(self) -> str:
        sizes = [rows.numel() for rows in self.rows]
        return f"Shards(clients={self.clients}, rows={sum(sizes)}, each={min(sizes)}..{max(sizes)})"


@checked
def shard(
    data: Any,
    *,
    clients: int | None = None,
    by: str | Sequence[Any] | Tensor | None = None,
    how: How | None = None,
    labels: str | Sequence[Any] | Tensor | None = None,
    concentration: float | None = None,
    labels_per_client: int = 2,
    balanced: bool = True,
    seed: int = 0,
) -> Shards | Datasets:
    """Split data over clients; no row goes to two clients.

        iid        random rows. Balanced: sizes differ by at most one. Otherwise sizes follow log-normal(0, 1) shares.
        dirichlet  by label. Balanced: equal sizes, a mix of labels drawn per client (Hsu et al. 2019); the last clients
                   of a random order take what is left. Otherwise each label's rows are split by shares drawn per label
                   (Yurochkin et al. 2019), and sizes vary too.
        label      few labels per client, each label at equally many clients (McMahan et al. 2017). Balanced: equal
                   sizes, so some rows stay unused. Otherwise all rows of a label are used.

    Args:
        data: tensors (inputs..., target), which stay in memory; or a dataset with a length and rows of any structure,
            such as a `datasets.Dataset`, whose rows are read when a job needs them.
        clients: number of clients, N.
        by: in place of `clients`, the split that the data has by nature: the name of the column with a row's client, or
            the client of each row. These are the clients' ids, in order of appearance.
        how: the split: "iid", "dirichlet" or "label"; None is "iid", or "dirichlet" if `concentration` is given.
        labels: the label of each row, or the name of a column; None is the last tensor.
        concentration: of the Dirichlet distribution, per label; small is heterogeneous (0.1), large is iid (100).
        labels_per_client: number of labels per client for how="label".
        balanced: whether all clients get the same number of rows.
        seed: draws the split.

    >>> shard((torch.zeros(10, 3), torch.arange(10)), clients=4)
    Shards(clients=4, rows=10, each=2..3)
    >>> shard((torch.zeros(3, 2), torch.arange(3)), by=["anna", "ben", "anna"]).ids
    ('anna', 'ben')
    """
    rows_in_list = isinstance(data, list) and not any(isinstance(each, Tensor | np.ndarray) for each in data)
    in_memory = isinstance(data, tuple | list | TensorDataset | Tensor | np.ndarray) and not rows_in_list
    source = tensors(data) if in_memory else _dataset(data)
    count = len(source[-1]) if isinstance(source, tuple) else len(source)
    if (by is None) == (clients is None):
        raise Invalid(f"a split needs either `clients` or `by`, got {'neither' if by is None else 'both'}.")
    if by is not None:
        if (how, labels, concentration) != (None, None, None):
            raise Invalid("`by` is a split itself. Leave out `how`, `labels` and `concentration`.")
        of_client: dict[str, list[int]] = {}
        values = _column(source, by, "by")
        for row, client in enumerate(values):
            rows = of_client.setdefault(str(client), [])
            if isinstance(client, list) or client != client or (rows and values[rows[0]] != client):
                got = f"{values[rows[0]]!r} and {client!r}" if rows else f"{client!r} in row {row}"
                raise Invalid(f"`by` must have one value per row, and values that are distinct as text, got {got}.")
            rows.append(row)
        return _divided(source, [np.array(rows) for rows in of_client.values()], tuple(of_client))

    check_integer("clients", clients)
    assert clients is not None
    check_integer("labels_per_client", labels_per_client)
    how = how or ("iid" if concentration is None else "dirichlet")
    check_choice("how", how, How)
    if how == "dirichlet":
        if concentration is None:
            raise Invalid("how='dirichlet' needs a `concentration`, got none. Use 0.3 for clearly different clients.")
        check_number("concentration", concentration, above=True)
    elif concentration is not None:
        raise Invalid(f"`concentration` belongs to how='dirichlet', got how={how!r}. Leave one of them out.")
    if count < clients:
        got = f"{count} rows for {clients} clients"
        raise Invalid(f"every client needs at least one row, got {got}. Use fewer clients.")
    rng = streams.generator(seed, "shard")
    if how == "iid":
        sizes = _even(count, clients) if balanced else _lognormal(rng, count, clients)
        parts = np.split(rng.permutation(count), np.cumsum(sizes)[:-1])
    else:
        by_label = _rows_by_label(rng, source, labels, how)
        if how == "label":
            parts = _few_labels(rng, by_label, clients, labels_per_client, balanced)
        elif balanced:
            parts = _dirichlet_mixes(rng, by_label, clients, float(concentration or 0))
        else:
            parts = _dirichlet_shares(rng, by_label, clients, float(concentration or 0))
    return _divided(source, [np.sort(part) for part in parts], None)


def tensors(data: Any) -> tuple[Tensor, ...]:
    """(inputs..., target) from tensors or a `TensorDataset`."""
    found = data.tensors if isinstance(data, TensorDataset) else data
    if not isinstance(found, list | tuple) or len(found) < 2 or not all(isinstance(t, Tensor) for t in found):
        items = found if isinstance(found, list | tuple) else [found]
        got = ", ".join(type(item).__name__ for item in items[:5]) or "none"
        fix = " Use torch.from_numpy(array)." if any(isinstance(item, np.ndarray) for item in items) else ""
        raise Invalid(f"data must be two or more tensors (inputs..., target) or a dataset, got {got}.{fix}")
    lengths = [t.shape[0] if t.dim() else 0 for t in found]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise Invalid(f"inputs and target must have the same number of rows, at least one, got {lengths}.")
    return tuple(found)


def _dataset(data: Any) -> Any:
    if isinstance(data, IterableDataset) or not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
        rule = "data that is split must be tensors, or a dataset with a length and rows dataset[0], dataset[1], …"
        raise Invalid(f"{rule}, got {type(data).__name__}. Give each client a stream of its own: data=[...].")
    if not length(data, "a dataset"):
        raise Invalid(f"a dataset must have at least one row, got none in {type(data).__name__}.")
    return data


def _divided(source: Any, parts: list[Rows], ids: tuple[str, ...] | None) -> Shards | Datasets:
    """Each client's rows of the source."""
    if isinstance(source, tuple):
        return Shards(source, tuple(torch.from_numpy(part) for part in parts), ids)
    subsets = [Subset(source, part.tolist()) for part in parts]
    return Datasets(dict(zip(ids, subsets, strict=True)) if ids else subsets)


def _column(source: Any, column: str | Sequence[Any] | Tensor, name: str) -> Sequence[Any]:
    """A value for each row: a column of the dataset, or the values that were given."""
    count = len(source[-1]) if isinstance(source, tuple) else len(source)
    known: list[str] = list(getattr(source, "column_names", ()))
    if isinstance(column, str):
        named_rows = isinstance(source, list) and all(isinstance(row, Mapping) and column in row for row in source)
        if column in known or named_rows:
            column = [row[column] for row in source] if named_rows else source[column]
    if isinstance(column, str) or not isinstance(column, Iterable):
        columns = f" The columns are {', '.join(known)}." if known else ""
        raise Invalid(f"`{name}` must name a column of the data, or be one value per row, got {column!r}.{columns}")
    given = column.tolist() if isinstance(column, Tensor | np.ndarray) else list(column)
    values = [value.tolist() if isinstance(value, Tensor | np.generic) else value for value in given]
    if len(values) != count:
        raise Invalid(f"`{name}` must have one value per row, got {len(values)} for {count} rows.")
    if None in values:
        fix = "Drop these rows, or give them a value of their own."
        raise Invalid(f"`{name}` must have a value in each row, got none in {values.count(None)} of {count}. {fix}")
    return values


Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


def _even(count: int, parts: int) -> Rows:
    """Split `count` into `parts` sizes that differ by at most one."""
    return np.array([count // parts + (i < count % parts) for i in range(parts)])


def _lognormal(rng: np.random.Generator, count: int, clients: int) -> Rows:
    """One row per client, the rest by log-normal shares."""
    edges = np.cumsum(rng.lognormal(size=clients))
    edges = np.floor(edges / edges[-1] * (count - clients)).astype(np.int64)
    sizes: Rows = 1 + np.diff(edges, prepend=0)
    return sizes


def _rows_by_label(
    rng: np.random.Generator, source: Any, labels: str | Sequence[Any] | Tensor | None, how: str
) -> list[Rows]:
    """The rows of each label, shuffled."""
    if labels is None and not isinstance(source, tuple):
        raise Invalid(f"how={how!r} needs `labels`: the name of a column, or the label of each row, got none.")
    try:
        values = np.array(source[-1].cpu() if labels is None else _column(source, labels, "labels"))
    except ValueError:  # sequences of different lengths
        values = np.array([None])
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        fix = "Give labels=[...] as integers, or use how='iid'."
        got = f"{values.dtype} {list(values.shape)}"
        raise Invalid(f"how={how!r} needs labels that are integers or text, one per row, got {got}. {fix}")
    return [rng.permutation(np.flatnonzero(values == label)) for label in np.unique(values)]


def _dirichlet_mixes(rng: np.random.Generator, by_label: list[Rows], clients: int, concentration: float) -> list[Rows]:
    left = np.array([len(rows) for rows in by_label])
    prior = left / left.sum() * len(by_label)  # all ones where labels are equally frequent
    parts: list[Rows] = [np.empty(0, np.int64)] * clients
    for client, size in zip(rng.permutation(clients), _even(int(left.sum()), clients), strict=True):
        mix, own = rng.dirichlet(concentration * prior), []
        while size:
            open_mix = np.where(left > 0, mix, 0.0)
            open_mix = open_mix if open_mix.sum() > 0 else left.astype(float)  # none of its labels is left
            taken = np.minimum(rng.multinomial(size, open_mix / open_mix.sum()), left)
            left = left - taken
            size -= taken.sum()
            own += [rows[rest : rest + k] for rows, rest, k in zip(by_label, left, taken, strict=True)]
        parts[client] = np.concatenate(own)
    return parts


def _dirichlet_shares(rng: np.random.Generator, by_label: list[Rows], clients: int, concentration: float) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for rows in by_label:
        edges = np.cumsum(rng.dirichlet(np.full(clients, concentration)))[:-1]
        for own, piece in zip(parts, np.split(rows, np.round(edges * len(rows)).astype(np.int64)), strict=True):
            own.append(piece)
    return [np.concatenate(own) for own in parts]


def _few_labels(rng: np.random.Generator, by_label: list[Rows], clients: int, each: int, balanced: bool) -> list[Rows]:
    if each > len(by_label):
        raise Invalid(f"`labels_per_client` must be at most the number of labels ({len(by_label)}), got {each}.")
    holders: list[list[int]] = [[] for _ in by_label]
    for client in range(clients):
        counts = np.array([len(holder) for holder in holders])
        for label in np.lexsort((rng.random(len(by_label)), counts))[:each]:  # the rarest first, ties at random
            holders[label].append(client)
    quota = min(len(rows) // len(holder) for rows, holder in zip(by_label, holders, strict=True) if holder)
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for rows, holder in zip(by_label, holders, strict=True):
        for client, piece in zip(holder, np.array_split(rows, max(len(holder), 1)), strict=False):
            parts[client].append(piece[:quota] if balanced else piece)
    return [np.concatenate(own) for own in parts]
