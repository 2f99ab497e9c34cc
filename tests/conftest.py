"""One torch thread: small models are quicker so, and other work on the machine cannot stall them."""

import gc
from collections.abc import Iterator

import pytest

from tests import forkserver


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") == "no":  # a process that runs tests, and does not only start those that do
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported now stays; libraries collect garbage again and again


@pytest.fixture(scope="session")
def forked_ray_workers() -> Iterator[None]:
    """Ray's workers start quickly from now on, except in programs that start Ray themselves."""
    with forkserver.forked_ray_workers():
        yield
