"""The head of a Ray cluster on loopback, which outlives the programs that join it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def started_head(**settings: Any) -> Iterator[Any]:
    """Start a head; this process does not join it."""
    from ray.cluster_utils import Cluster

    own = {"num_cpus": 4, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    head = Cluster(initialize_head=True, head_node_args=own | settings)
    try:
        yield head
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            head.shutdown()
            gc.collect()
