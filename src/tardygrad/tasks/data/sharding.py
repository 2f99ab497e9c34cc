"""Sharding: which rows of the data belong to which client."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from tardygrad import streams
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid, check_choice, check_integer, check_number, checked_call
from tardygrad.tasks.data.client_data import Loading, deal

How = Literal["iid", "dirichlet", "label"]
"""How clients differ: not at all, in their mix of labels, or in which few labels they have."""


class SplitSettings(TypedDict, total=False):
    """The settings of `shard` that tasks pass on."""

    how: How | None
    concentration: float | None
    labels_per_client: int
    balanced: bool


Data = tuple[Tensor, ...] | Dataset[Any]
"""(inputs..., target), one row per example; or a map-style dataset of such rows."""


@dataclass(frozen=True, eq=False, repr=False)
class Shards:
    """Data and each client's rows. Made by `shard`, or directly from a split of your own."""

    data: tuple[Tensor, ...]  # inputs..., target
    rows: tuple[Tensor, ...]  # one index tensor per client

    def __post_init__(self) -> None:
        count = len(tensors(self.data)[-1])
        if not self.rows:
            raise Invalid("a split must have the rows of at least one client, got none.")
        for client, rows in enumerate(self.rows):
            if not isinstance(rows, Tensor):
                got = f"{type(rows).__name__} (client {client})"
                raise Invalid(f"rows must be flat int64 tensors, got {got}. Use torch.as_tensor(rows).")
            if rows.numel() == 0:
                got = f"none for client {client} ({count} rows, {self.clients} clients)"
                raise Invalid(f"every client needs at least one row, got {got}. Use fewer clients or a milder split.")
            if rows.dim() != 1 or rows.dtype != torch.int64:
                got = f"{rows.dtype} {list(rows.shape)} (client {client})"
                raise Invalid(f"rows must be flat int64 tensors, got {got}.")
            if int(rows.min()) < 0 or int(rows.max()) >= count:
                raise Invalid(f"rows must be between 0 and {count - 1}, got others for client {client}.")

    @property
    def clients(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> None:
        """Clients of a split have no ids."""

    def to(self, device: torch.device) -> Shards:
        """The same with its data on a device."""
        return replace(self, data=tuple(tensor.to(device) for tensor in self.data))

    def steps(self, job: Job, loading: Loading) -> Iterator[tuple[tuple[Tensor, ...], ...]]:
        """The batches of each local step."""
        mine = self.rows[job.client]
        for step in deal(job, len(mine), loading):
            chosen = [mine[torch.from_numpy(batch)] for batch in step]
            yield tuple(tuple(tensor[rows] for tensor in self.data) for rows in chosen)

    def __repr__(self) -> str:
        sizes = [rows.numel() for rows in self.rows]
        return f"Shards(clients={self.clients}, rows={sum(sizes)}, each={min(sizes)}..{max(sizes)})"


@checked_call
def shard(
    data: Data,
    *,
    clients: int,
    how: How | None = None,
    concentration: float | None = None,
    labels_per_client: int = 2,
    balanced: bool = True,
    seed: int = 0,
) -> Shards:
    """Split data over clients; no row goes to two clients.

    iid        random rows. Balanced: sizes differ by at most one. Otherwise sizes follow log-normal(0, 1) shares.
    dirichlet  by label. Balanced: equal sizes, a mix of labels drawn per client (Hsu et al. 2019); the last clients of
               a random order take what is left. Otherwise each label's rows are split by shares drawn per label
               (Yurochkin et al. 2019), and sizes vary too.
    label      few labels per client, each label at equally many clients (McMahan et al. 2017). Balanced: equal sizes,
               so some rows stay unused. Otherwise all rows of a label are used.

    Args:
        data: tensors (inputs..., target), or a map-style dataset of such rows.
        clients: number of clients, N.
        how: the split: "iid", "dirichlet" or "label"; None is "iid", or "dirichlet" if `concentration` is given.
        concentration: of the Dirichlet distribution, per label; small is heterogeneous (0.1), large is iid (100).
        labels_per_client: number of labels per client for how="label".
        balanced: whether all clients get the same number of rows.
        seed: draws the split.

    >>> shard((torch.zeros(10, 3), torch.arange(10)), clients=4)
    Shards(clients=4, rows=10, each=2..3)
    """
    check_integer("clients", clients)
    check_integer("labels_per_client", labels_per_client)
    how = how or ("iid" if concentration is None else "dirichlet")
    check_choice("how", how, How)
    if how == "dirichlet":
        if concentration is None:
            raise Invalid("how='dirichlet' needs a `concentration`, got none. Use 0.3 for clearly different clients.")
        check_number("concentration", concentration, above=True)
    elif concentration is not None:
        raise Invalid(f"`concentration` belongs to how='dirichlet', got how={how!r}. Leave one of them out.")

    columns = tensors(data)
    target, count = columns[-1], len(columns[-1])
    if count < clients:
        got = f"{count} rows for {clients} clients"
        raise Invalid(f"every client needs at least one row, got {got}. Use fewer clients.")
    rng = streams.generator(seed, "shard")
    if how == "iid":
        sizes = _even(count, clients) if balanced else _lognormal(rng, count, clients)
        parts = np.split(rng.permutation(count), np.cumsum(sizes)[:-1])
    else:
        by_label = _rows_by_label(rng, target, how)
        if how == "label":
            parts = _few_labels(rng, by_label, clients, labels_per_client, balanced)
        elif balanced:
            parts = _dirichlet_mixes(rng, by_label, clients, float(concentration or 0))
        else:
            parts = _dirichlet_shares(rng, by_label, clients, float(concentration or 0))
    return Shards(columns, tuple(torch.from_numpy(np.sort(part)) for part in parts))


def tensors(data: Data) -> tuple[Tensor, ...]:
    """(inputs..., target) from tensors or from a map-style dataset."""
    found: Any = data
    if isinstance(data, TensorDataset):
        found = data.tensors
    elif isinstance(data, Dataset):
        if not isinstance(data, Sized) or not len(data):
            raise Invalid(f"a dataset must have a length and at least one row, got {type(data).__name__}.")
        found = default_collate([data[i] for i in range(len(data))])
    if not isinstance(found, list | tuple) or len(found) < 2 or not all(isinstance(t, Tensor) for t in found):
        items = found if isinstance(found, list | tuple) else [found]
        got = ", ".join(type(item).__name__ for item in items) or "none"
        fix = " Use torch.from_numpy(array)." if any(isinstance(item, np.ndarray) for item in items) else ""
        rule = "data must be two or more tensors (inputs..., target) or a dataset of such rows"
        raise Invalid(f"{rule}, got {got}.{fix}")
    lengths = [t.shape[0] if t.dim() else 0 for t in found]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise Invalid(f"inputs and target must have the same number of rows, at least one, got {lengths}.")
    return tuple(found)


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


def _rows_by_label(rng: np.random.Generator, target: Tensor, how: str) -> list[Rows]:
    """The rows of each label, shuffled."""
    if target.dim() != 1 or target.is_floating_point() or target.is_complex():
        raise Invalid(
            f"how={how!r} needs integer labels, one per row, got {target.dtype} {list(target.shape)}. Use how='iid'."
        )
    labels = target.cpu().numpy()
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


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
