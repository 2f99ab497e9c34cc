"""One torch thread: small models are quicker so, and other work on the machine cannot stall them."""

from collections.abc import Iterator

import pytest
import torch

from tests import forkserver

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forked_ray_workers() -> Iterator[None]:
    """Ray's workers start quickly: for all tests but a few that need them as users have them."""
    with forkserver.forked_ray_workers():
        yield
