"""The command line, as tests/cli calls it, and one Ray cluster for all tests that need not start it themselves."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tardygrad.engines.ray import connection
from tests.cli.conftest import tardygrad as tardygrad


@pytest.fixture(scope="package")
def head(forked_ray_workers: None) -> Iterator[Any]:
    """The head of a Ray cluster on loopback."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    settings = {"num_cpus": 4, "node_ip_address": "127.0.0.1", "include_dashboard": False, "labels": {"zone": "b"}}
    with connection.local_settings(ray, True):
        started = Cluster(initialize_head=True, head_node_args=settings)
    yield started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started.shutdown()
        gc.collect()


@pytest.fixture(scope="module")
def cluster(head: Any) -> Iterator[Any]:
    """A Ray cluster that this process has joined; its pools use it."""
    import ray

    connection.join(ray, head.address)
    yield head
    ray.shutdown()
