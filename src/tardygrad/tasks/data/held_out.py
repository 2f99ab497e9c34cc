"""The test set, in batches: tensors, a dataset, a function that opens one, or batches of your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from copy import copy
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tardygrad import streams
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.seeding import seeded
from tardygrad.tasks.data.client_data import Collate, length
from tardygrad.tasks.data.sharding import tensors

ScoreOn = Literal["test", "validation"]
"""The rows that evaluations use: those of the test set, or the training rows that are set apart."""


def set_apart(
    train: tuple[Tensor, ...],
    test: tuple[Tensor, ...],
    validation_rows: int,
    score_on: ScoreOn,
    *,
    shuffle: bool = True,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The rows to train on, and those to evaluate on.

    Settings are chosen on validation rows and reported on test rows; nobody trains on either. The validation rows do
    not depend on a seed.

    Args:
        train: all training rows, as tensors (inputs..., target).
        test: the test rows.
        validation_rows: how many training rows to set apart.
        score_on: which of the two to evaluate on.
        shuffle: set random rows apart; False takes the last ones, for consecutive rows of a text, of
            which random ones would overlap with those that clients train on.
    """
    check_choice("score_on", score_on, ScoreOn)
    check_integer("validation_rows", validation_rows, 0)
    count = len(train[-1])
    if validation_rows >= count:
        raise Invalid(f"`validation_rows` must leave rows to train on, got {validation_rows} of {count}.")
    if score_on == "validation" and not validation_rows:
        raise Invalid("score_on='validation' needs validation_rows=..., got 0.")
    if not validation_rows:
        return train, test
    order = torch.arange(count).flip(0)
    if shuffle:
        order = torch.from_numpy(streams.generator(0, "validation rows").permutation(count))
    apart, rest = (rows.sort().values for rows in (order[:validation_rows], order[validation_rows:]))
    chosen = tuple(tensor[apart] for tensor in train) if score_on == "validation" else test
    return tuple(tensor[rest] for tensor in train), chosen


class HeldOut:
    """The test set. Nothing is read before the first evaluation.

    Args:
        source: tensors (inputs..., target); a dataset, also an `IterableDataset`, or a list of rows; another iterable,
            of batches, such as a DataLoader; or a function without arguments that returns one of these, called once in
            each process.
        batch_size: rows per batch.
        collate: makes a batch of a list of rows.
    """

    def __init__(self, source: Any, batch_size: int, collate: Collate | None) -> None:
        self.batch_size, self.collate = batch_size, collate
        self.open = source if callable(source) else None
        self._data: Any = None if self.open else self._checked(source)

    @property
    def tensors(self) -> tuple[Tensor, ...] | None:
        """The test set, if it is tensors in memory."""
        return self._data if isinstance(self._data, tuple) else None

    @property
    def may_repeat_tensors(self) -> bool:
        """Whether each evaluation may get the same tensors, since the user's own iterable or `collate` gives them."""
        return self.collate is not None or not hasattr(self._data, "__getitem__")

    def to(self, device: torch.device) -> Self:
        """The same with its tensors on a device; what is read later is moved when it is used."""
        moved = copy(self)
        if isinstance(self._data, tuple):
            moved._data = tuple(tensor.to(device) for tensor in self._data)
        return moved

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | ({"_data": None} if self.open else {})  # another process opens its own

    @property
    def data(self) -> Any:
        """The test set; opened if it has not been."""
        if self._data is None and self.open is not None:
            with seeded(streams.key(0, "open test")):
                self._data = self._checked(self.open())
        return self._data

    def batches(self) -> Iterator[tuple[Any, int | None]]:
        """The test set in batches, in order, each with its number of rows, if that is known."""
        if isinstance(self.data, tuple):
            parts = zip(*(torch.split(tensor, self.batch_size) for tensor in self.data), strict=True)
            return ((batch, len(batch[0])) for batch in parts)
        if hasattr(self.data, "__getitem__"):
            return self._load()
        return ((batch, None) for batch in self.data)

    def _load(self) -> Iterator[tuple[Any, int]]:
        collate = self.collate or default_collate
        loader = DataLoader(
            self.data,
            self.batch_size,
            collate_fn=lambda rows: (collate(rows), len(rows)),
            generator=torch.Generator(),  # else the loader would draw from torch's global one
        )
        count = 0
        for batch, rows in loader:
            count += 1
            yield batch, rows
        if isinstance(self.data, Sized) and count < len(loader):  # a StopIteration of the dataset ends the loop
            rule = "`test` must return a row for every number below its length"
            raise Invalid(f"{rule}, got {len(loader)} batches in its length, and rows for {count}.")

    @staticmethod
    def _checked(data: Any) -> Any:
        """Tensors as a tuple; anything else as it is."""
        parts = data if isinstance(data, tuple) else [data]
        if isinstance(data, TensorDataset) or all(isinstance(part, Tensor | np.ndarray) for part in parts):
            return tensors(data)
        got, rows = type(data).__name__, hasattr(data, "__getitem__") and isinstance(data, Sized)
        if isinstance(data, str | Mapping) or not (isinstance(data, Iterable) or rows):
            rule = "`test` must be tensors (inputs..., target), a dataset with a length, or an iterable of batches"
            raise Invalid(f"{rule}, got {got}.")
        if isinstance(data, Sized) and not length(data, "`test`"):
            raise Invalid(f"`test` must have at least one row, got none in {got}.")
        if isinstance(data, Iterator):
            fix = "Use a list of rows, a DataLoader, or an object whose `__iter__` starts again."
            raise Invalid(f"`test` is read in every evaluation, got {got}, which is read once. {fix}")
        return list(data) if isinstance(data, tuple) else data  # of rows


class ClientTests:
    """The test sets of clients, each opened when it is first used.

    Args:
        source: a sequence with a test set for each client; a mapping from ids (or numbers) to test sets, which may
            leave out clients; or a function of the client, its id if it has one, called once in each process.
    """

    def __init__(self, source: Any, clients: int, ids: tuple[str, ...] | None) -> None:
        self.names: tuple[Any, ...] = ids or tuple(range(clients))
        self.source = source
        self._opened: dict[int, Any] = {}
        if isinstance(source, Mapping):
            known = {str(name) for name in self.names}
            if unknown := [name for name in source if str(name) not in known]:
                raise Invalid(f"`client_test` must name clients of the task, got {unknown[0]!r}.")
            self.source = {str(name): test for name, test in source.items()}
            if len(self.source) < len(source):
                raise Invalid(
                    f"the keys of `client_test` must be distinct as text, got {', '.join(map(repr, source))}."
                )
        elif not callable(source) and (not isinstance(source, Sequence) or len(source) != clients):
            got = f"{len(source)} test sets" if isinstance(source, Sequence) else type(source).__name__
            rule = (
                f"`client_test` must be a list with a test set for each of {clients} clients, a mapping or a function"
            )
            raise Invalid(f"{rule}, got {got}.")

    def __getitem__(self, client: int) -> Any:
        """The client's test set; None if it has none."""
        if isinstance(self.source, dict):
            return self.source.get(str(self.names[client]))
        if not callable(self.source):
            return self.source[client]
        if client not in self._opened:
            with seeded(streams.key(0, "open test", client)):
                self._opened[client] = self.source(self.names[client])
        return self._opened[client]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": {}}  # another process opens its own
