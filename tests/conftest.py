"""What all tests share: one torch thread, workers of Ray that start quickly, and a browser.

One thread, because small models are quicker so, and other work on the machine cannot stall them.
"""

import gc
import math
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests import forkserver

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def pytest_configure(config: pytest.Config) -> None:
    for name in (
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_USAGE_STATS_ENABLED",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    ):  # before anyone imports Ray
        os.environ[name] = "0"
    if config.getoption("dist", "no") == "no":  # a process that runs tests, and does not only start those that do
        import torch

        from tardygrad.runs import progress

        torch.set_num_threads(1)
        progress.PAUSE = math.inf  # under load a test may take longer, and its output has no lines of progress


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported now stays; libraries collect garbage again and again


@pytest.fixture(scope="session")
def forked_ray_workers() -> Iterator[None]:
    """Ray's workers start quickly from now on, except in programs that start Ray themselves."""
    with forkserver.forked_ray_workers():
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, as the system has it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, args=[*FLAGS, "--disable-sync", "--no-first-run"]
        )
        yield running
        running.close()
