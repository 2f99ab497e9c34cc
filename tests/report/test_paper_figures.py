"""Figures for papers: their files, their sizes, and that no name is cut off."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tardygrad.report.build import build
from tardygrad.report.groups import grouped
from tardygrad.report.loader import read
from tardygrad.report.paper_figures import sweep_figures, write_images
from tardygrad.report.sweeps import sweep_sections
from tardygrad.results.figure import WIDTHS
from tardygrad.results.theme import strokes
from tests.report.records import EVIL, ODD, events, record
from tests.report.test_sweeps import swept, trial

LONG = "FedBuff with a long name of its own, "


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for number, label in enumerate((LONG + "and one", LONG + "and another", EVIL + ODD)):
        for seed in range(2):
            path = record(folder / f"{number}-{seed}", seed=seed, label=label, spec={"method": {"lr": number}})
            rows = [{**row, "f/1": 0.5, "f-1": 0.5} if row["event"] == "evaluation" else row for row in events(12)]
            (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_figure_is_as_wide_as_columns_and_has_every_name_in_full(runs: Path, tmp_path: Path) -> None:
    drawn = list(build([str(runs)]).paper_figures())
    names = ("test-accuracy", "test-loss", "test-f-1", "test-f-1-2", "training-loss")
    assert [figure.name for figure in drawn] == [f"{name}-{width}" for name in names for width in WIDTHS]
    for figure, width in zip(drawn[:2], WIDTHS.values(), strict=True):
        pdf, svg, png = (path.read_bytes() for path in write_images(figure, tmp_path))
        (wide, high) = re.findall(rb'(?:width|height)="([\d.]+)pt"', svg)
        assert float(wide) == pytest.approx(width, abs=1)
        assert pdf.startswith(b"%PDF")
        assert float(re.findall(rb"MediaBox ?\[ ?0 0 ([\d.]+)", pdf)[0]) == pytest.approx(width, abs=1)
        assert int.from_bytes(png[16:20], "big") == pytest.approx(width * 300 / 72, abs=5)
        assert float(high) < 300
        text = unescape("".join(re.findall(r">([^<]+)<", svg.decode())))
        for group in grouped(map(read, sorted(runs.iterdir()))):
            assert "".join(group.name.split()) in "".join(text.split())
        assert {float(size) for size in re.findall(rb'font-size="([\d.]+)px"', svg)} == {8.0}


def test_a_method_has_its_colour_in_every_figure(tmp_path: Path) -> None:
    for label in ("Clip²", "sync-Clip²"):
        record(tmp_path / label, label=label, spec={"method": {"kind": label}})
    colours = [stroke.colour for stroke in strokes(["Clip²", "sync-Clip²"])]
    drawn = list(build([str(tmp_path)]).paper_figures())
    assert len(drawn) == 6
    for figure in drawn:
        layers = json.loads(figure.spec)["concat"][0]["layer"]
        assert [layer["encoding"]["color"]["scale"]["range"] for layer in layers] == [colours] * len(layers)


def test_clocks_that_differ_are_not_on_one_axis(tmp_path: Path) -> None:
    record(tmp_path / "0")
    record(tmp_path / "1", label="other", clock="real", spec={"method": {"lr": 3}})
    for figure in build([str(tmp_path)]).paper_figures():
        panels: list[Any] = json.loads(figure.spec)["concat"]
        assert [panel["layer"][0]["encoding"]["x"]["field"] for panel in panels] == ["round"]


def test_the_charts_of_a_sweep_are_two_columns_wide_with_their_legend(tmp_path: Path) -> None:
    trials = [trial(i, ("Clip²", "SGDClip")[i % 2], 0.03 * (i + 1), 0.1 / (i + 1), 0.5) for i in range(12)]
    drawn = {figure.name: figure for figure in sweep_figures(sweep_sections(swept(trials), "mine", 1))}
    assert list(drawn) == [f"{key}-two-columns" for key in ("workable", "history", "slices")]
    pdf, svg, _ = (path.read_bytes() for path in write_images(drawn["history-two-columns"], tmp_path))
    assert float(re.findall(rb"MediaBox ?\[ ?0 0 ([\d.]+)", pdf)[0]) == pytest.approx(486, abs=1)
    assert svg.count(b">SGDClip<") == 1
