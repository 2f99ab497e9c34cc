"""Figures for papers: the comparison of runs, and the charts of sweeps, as PDF, SVG and PNG.

They are as wide as one column or two, in points (1/72 inch): a curve that is included in its own size has text of 8
points, and a chart of a sweep, which is two columns wide, of about 7.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from tardygrad.report.curves import Curve, Lines, learning_curves, lines_of, panels
from tardygrad.report.groups import SeedGroup
from tardygrad.report.page import figures, put
from tardygrad.results.blocks import LegendEntry, Section
from tardygrad.results.figure import FONT, LABEL_EXPR, TEXT, WIDTHS, fitted_names, quoted
from tardygrad.results.theme import line_legend, rendered
from tardygrad.runs.record import to_json_value

HEIGHT = 130  # of a panel
RESOLUTION = 300  # pixels of a PNG per inch
_SIZE = re.compile(r'(width|height)="([\d.]+)"')  # of an SVG, the first two matches


class PaperFigure(NamedTuple):
    """A figure in one width."""

    name: str  # of its files, without suffix
    spec: str  # Vega-Lite as JSON
    scale: float = 1.0  # points per pixel of the chart


def paper_figures(groups: list[SeedGroup]) -> Iterator[PaperFigure]:
    """Every score and the training loss: against time in one column, against rounds and time in two.

    Times of different kinds of clocks cannot be compared; then there are only rounds.
    """
    seen = Counter[str]()
    for curve in learning_curves(groups):
        lines = lines_of(groups, curve)
        if lines is None:
            continue
        seen[name := file_name(curve.title)] += 1
        number = f"-{seen[name]}" if seen[name] > 1 else ""
        for columns, width in WIDTHS.items():
            axes = [axis for axis in ("round", "time") if axis in lines.axes]
            spec = _fitted(groups, curve, lines, axes[-1:] if columns == "one-column" else axes, width)
            yield PaperFigure(f"{name}{number}-{columns}", spec)


def sweep_figures(sections: Iterable[Section]) -> Iterator[PaperFigure]:
    """The charts of sweeps, two columns wide."""
    for figure in figures(sections):
        spec = json.dumps(with_legend(figure.chart, figure.legend) | {"background": "white"})
        name, width = f"{figure.key}-two-columns", WIDTHS["two-columns"]
        yield PaperFigure(name, spec, scale=width / _width(spec))


def with_legend(spec: Any, entries: Sequence[LegendEntry]) -> Any:
    """The chart of a page with the legend that the page shows beside it."""
    if isinstance(spec, list):
        return [with_legend(each, entries) for each in spec]
    if not isinstance(spec, dict) or not entries:
        return spec
    longest = max(len(entry.name) for entry in entries)
    shown = {"title": None, "columns": max(1, 110 // (longest + 6)), "symbolOpacity": 1}
    return {
        key: value | {"legend": shown}
        if key == "color" and isinstance(value, dict) and "scale" in value
        else value
        if key == "datasets"
        else with_legend(value, entries)
        for key, value in spec.items()
    }


def file_name(title: str) -> str:
    """A title as the name of a file.

    >>> file_name("Test accuracy"), file_name("Test ../F1 (macro)")
    ('test-accuracy', 'test-f1-macro')
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def write_images(figure: PaperFigure, folder: Path) -> list[Path]:
    """Write a figure as PDF, SVG and PNG."""
    import vl_convert

    drawn = rendered(figure.spec, ".svg").decode()

    def svg(unit: str) -> str:
        return _SIZE.sub(lambda size: f'{size[1]}="{figure.scale * float(size[2]):.1f}{unit}"', drawn, count=2)

    contents = {
        ".pdf": vl_convert.svg_to_pdf(svg("")),  # which takes a pixel for a point
        ".svg": svg("pt").encode(),
        ".png": rendered(figure.spec, ".png", scale=figure.scale * RESOLUTION / 72),
    }
    for suffix, content in contents.items():
        put(folder / f"{figure.name}{suffix}", content)
    return [folder / f"{figure.name}{suffix}" for suffix in contents]


def _width(spec: str) -> float:
    """The width of a chart, which is known only when its labels are drawn."""
    found = _SIZE.search(rendered(spec, ".svg").decode())
    assert found is not None
    return float(found[2])


def _fitted(groups: list[SeedGroup], curve: Curve, lines: Lines, axes: Sequence[str], width: int) -> str:
    """The chart in exactly this width: panels take what axes leave, names in the legend break to fit."""
    names, columns = fitted_names([group.name for group in groups], width)
    legend = line_legend(columns=columns, labelExpr=LABEL_EXPR, symbolStrokeWidth=1.5) if len(groups) > 1 else None
    name_of = dict(zip((group.name for group in groups), names, strict=True))
    datasets = {
        axis: [
            {**point, "name": name_of[point["group"]], "width": 0.6 * point["width"]} for point in lines.points[axis]
        ]
        for axis in axes
    }
    panel = width / len(axes) - 40
    for _ in range(3):  # the labels may change with the width of the panels
        drawn = panels(groups, lines, curve, axes, names=names, legend=legend, width=panel, height=HEIGHT)
        chart = quoted(_styled(alt.concat(*drawn, columns=2, spacing=8)).to_dict())
        spec = json.dumps(chart | {"datasets": to_json_value(datasets)})
        if (excess := _width(spec) - width) == 0:
            break
        panel -= excess / len(axes)
    return spec


def _styled(chart: Any) -> Any:
    """The chart in black on white, with text of one size."""
    text = {"labelFontSize": TEXT, "titleFontSize": TEXT, "titleFontWeight": "normal"}
    black = {"labelColor": "black", "titleColor": "black"}
    return chart.properties(padding=2).configure(
        background="white",
        font=FONT,
        axis={**text, **black, "gridColor": "#dddddd", "gridWidth": 0.5, "tickWidth": 0.5, "domainWidth": 0.5}
        | {"tickSize": 3, "titlePadding": 3},
        legend={**text, **black, "labelLimit": 0, "columnPadding": 8, "rowPadding": 1, "symbolSize": 150, "offset": 4},
        view={"stroke": None},
    )
