"""Numbers beyond what a machine can do are refused, with the arithmetic."""

from __future__ import annotations

import os

import pytest

import tardygrad as tg
from tardygrad.engines.processes import PROCESSES_PER_CORE, process_count
from tardygrad.engines.sim import process_pool
from tests.cli.conftest import Command
from tests.cli.conftest import tardygrad as tardygrad
from tests.test_hostile import FLEET, method, task

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("engine", [[], ["engine.kind=threads"]], ids=["sim", "threads"])
def test_more_workers_than_a_machine_can_run_are_refused(engine: list[str], tardygrad: Command) -> None:
    ended = tardygrad("run", "small.toml", *engine, "engine.workers=100000")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "`workers` must be " in ended.err


def test_the_arithmetic_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_count("jobs", 0) == CORES
    assert process_count("jobs", PROCESSES_PER_CORE * CORES) == PROCESSES_PER_CORE * CORES
    most = PROCESSES_PER_CORE * CORES
    with pytest.raises(
        tg.Invalid, match=rf"`jobs` must be at most {most}, 16 for each core .* \({CORES}\), got 100,000\. Use"
    ):
        process_count("jobs", 100_000)
    monkeypatch.setattr(process_pool.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 10}[name])
    with pytest.raises(
        tg.Invalid, match=r"must be at most 1: each needs 6 vectors of 4 numbers, 9\.6e-08 GB, and this"
    ):
        tg.SimPool(task(), method(), FLEET, workers=2)


@pytest.mark.parametrize("clients", [10**9, 10**26, 10**5000], ids=["9", "26", "5000"])
def test_more_clients_than_memory_can_hold_are_refused(clients: int) -> None:
    with pytest.raises(tg.Invalid, match=r"at most 100,000,000 clients, each takes a kilobyte; got |whole number from"):
        tg.Fleet((tg.Group("a", clients, tg.Uniform(1, 2)),))
