"""One torch thread: small models are quicker so, and other work on the machine cannot stall them."""

from collections.abc import Iterator

import pytest
import torch

from tests import forkserver

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forked_ray_workers() -> Iterator[None]:
    """Ray's workers start quickly from now on, except in programs that start Ray themselves."""
    with forkserver.forked_ray_workers():
        yield
