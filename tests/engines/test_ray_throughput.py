"""The benchmark of updates through the server, and what docs/scale.md makes of it, with small numbers."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scale.md").read_text("utf-8")
FIGURES = {
    "rows": [
        {"parameters": n, "curvature": curvature, "shards": shards, "wire": "float32", "server": n * 1e-9 / shards}
        for n in (10**6, 10**7)
        for curvature in (False, True)
        for shards in (1, 2)
    ],
    "tiny": [{"shards": 1, "cpu": 0.001}, {"shards": 2, "cpu": 0.0015}],
    "wait": {"10": 0.0001, "1000": 0.0004},
}


def load(name: str) -> ModuleType:
    """A benchmark as a module."""
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert found
    assert found.loader
    made = importlib.util.module_from_spec(found)
    sys.modules[name] = made  # dataclasses look there
    found.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def scale() -> Any:
    yield load("scale")
    del sys.modules["scale"]


@pytest.fixture(scope="module")
def throughput() -> Any:
    yield load("ray_throughput")
    del sys.modules["ray_throughput"]


def scene(scale: Any, **settings: Any) -> Any:
    given = {"clients": 20, "parameters": 10**9, "unit": 60.0, "link": 1.25e9, "card": 12.5e9, "load": 0.7}
    return scale.Scene(**given | settings, figures=FIGURES)


def test_the_page_of_the_scale_has_every_table_and_what_does_not_depend_on_a_machine_is_as_printed(
    scale: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, page = tmp_path / "figures.json", tmp_path / "scale.md"
    results.write_text(json.dumps(FIGURES))
    page.write_text(PAGE, "utf-8")
    scale.main(["--clients", "20", "--results", str(results), "--page", str(page)])
    text = page.read_text("utf-8")
    printed = capsys.readouterr().out
    for title in ("bytes", "server", "clock", "models", "memory", "driver"):
        block = text.partition(f"```text {title}\n")[2].partition("```")[0]
        assert block
        assert f"{title}\n{block}" in printed
    bytes_of = scale.printed(scale.bytes_and_links(scene(scale, clients=1000)))
    assert f"```text bytes\n{bytes_of}```" in PAGE


def test_seconds_of_a_server_are_of_the_largest_size_and_in_proportion(scale: Any) -> None:
    at = scene(scale)
    delta, both = at.loads()
    assert (delta.measured, both.measured) == (10**7, 10**7)
    assert delta.server == pytest.approx(1.0)
    assert (delta.up, both.up) == (4e9, 8e9)
    assert at.seconds(delta, 1) == pytest.approx(1.0)
    assert at.seconds(delta, 4) == pytest.approx(0.25)
    slow = scene(scale, card=1e9)
    assert slow.seconds(delta, 4) == pytest.approx(1.0)  # by its card


def test_a_server_that_is_too_slow_holds_the_fleet_up_and_enough_shards_do_not(scale: Any) -> None:
    at = scene(scale, unit=0.5)
    delta = at.loads()[0]
    offered = scale.clocked(at, delta, float("inf"))
    shards = scale.enough(at, delta, offered.updates)
    assert shards > 1
    assert scale.clocked(at, delta, 1).updates == pytest.approx(1.0, rel=0.05)  # one second each
    assert scale.clocked(at, delta, shards).updates > 0.8 * offered.updates
    assert 1 <= offered.starts <= 20


@pytest.mark.usefixtures("forked_ray_workers")
@pytest.mark.timeout(900)  # a busy machine may take a minute to start a worker
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_updates_are_timed_from_the_worker_into_the_sum(throughput: Any) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("psutil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with throughput.started(8192):
            waits = throughput.waiting((2, 5), repeats=2)
            rows = [
                throughput.measure(8192, curvature=True, shards=shards, wire=wire, repeats=1, sent=4)
                for shards, wire in ((1, "int8"), (2, "float32"))
            ]
    assert set(waits) == {2, 5}
    narrow, wide = rows
    assert (narrow.sent, wide.sent) == (2 * (8192 + 2 * 4), 2 * 4 * 8192)
    for row in rows:
        assert row.bytes == 2 * 4 * 8192
        assert 0 < row.server < row.later
        assert min(row.first, row.cold, row.copy, row.clone, row.updates, row.cpu) > 0
        assert row.copy <= row.typical
        assert row.memory > 10**8
    assert not throughput.verdicts(rows)
    rows[0].parameters, rows[0].first, rows[0].copy = throughput.LARGE, 1.0, 0.1
    (line,) = throughput.verdicts(rows)
    assert "FAILS" in line
