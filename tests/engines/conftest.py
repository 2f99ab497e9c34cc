"""The command line, as tests/cli calls it, and one Ray cluster for all tests that need not start it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tardygrad.engines.ray import connection
from tests.cli.conftest import tardygrad as tardygrad
from tests.engines.ray_head import started_head


@pytest.fixture(scope="package")
def head(forked_ray_workers: None) -> Iterator[Any]:
    """The head of a Ray cluster on loopback."""
    pytest.importorskip("ray")
    with started_head(labels={"zone": "b"}) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(head: Any) -> Iterator[Any]:
    """A Ray cluster that this process has joined; its pools use it."""
    import ray

    connection.join(ray, head.address)
    yield head
    ray.shutdown()
