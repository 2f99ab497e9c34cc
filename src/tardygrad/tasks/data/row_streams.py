"""Streams of rows: datasets that give their rows one after the other, without numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from tardygrad import streams
from tardygrad.errors import Invalid
from tardygrad.seeding import seed, states


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
