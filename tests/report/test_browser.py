"""Pages in a real browser: charts draw, tips show, themes switch, keys work, nothing is fetched."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tardygrad.cli.main import main
from tardygrad.report.build import build
from tardygrad.report.live import serve
from tardygrad.report.page import figures
from tests.report.conftest import Open
from tests.report.records import EVIL, ODD, events, record, write

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page on one run, and one on several of which one is hostile."""
    folder = tmp_path_factory.mktemp("pages")
    evil = record(
        folder / "runs/evil", label=EVIL, method=EVIL, classes=[[EVIL, 3], ["large", 1]], spec={EVIL: {EVIL: EVIL}}
    )
    for seed in range(2):
        record(folder / f"runs/{seed}", seed=seed)
    made = {}
    for name, places in (("one", [folder / "runs/0"]), ("evil", [evil]), ("several", [folder / "runs"])):
        made[name] = folder / f"{name}.html"
        made[name].write_text(build([str(place) for place in places]).html(), "utf-8")
    return made


def drawn(page: Any, within: str = "main") -> dict[str, int]:
    """Every chart that is in the open, with the number of its marks."""
    script = """within => Object.fromEntries([...document.querySelectorAll(within + ' .chart')]
        .filter(chart => !chart.closest('details:not([open])'))
        .map(chart => [chart.id, chart.querySelectorAll('svg .mark-rect path, svg .mark-line path, '
            + 'svg .mark-symbol path, svg .mark-rule line').length]))"""
    return dict(page.evaluate(script, within))


def test_a_phone_shows_method_score_and_speed_up_and_says_where_a_table_scrolls(tmp_path: Path, opened: Open) -> None:
    for seed in range(2):
        record(tmp_path / f"runs/clip-{seed}", seed=seed)
        record(tmp_path / f"runs/sync-{seed}", seed=seed, label="sync-Clip²", spec={"method": {"mode": "sync"}})
    (tmp_path / "page.html").write_text(build([str(tmp_path / "runs")]).html(), "utf-8")
    page = opened((tmp_path / "page.html").as_uri())
    page.set_viewport_size({"width": 400, "height": 800})
    table = page.locator(".wide").first
    page.wait_for_selector(".wide.scrolls.more")
    heads = table.locator("thead th")
    assert heads.all_inner_texts()[:3] == ["method", "accuracy (%)", "difference"]
    assert heads.nth(2).bounding_box()["x"] + heads.nth(2).bounding_box()["width"] < 380
    assert "scroll sideways" in table.evaluate("table => getComputedStyle(table, '::before').content")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    table.evaluate("table => table.scrollTo(9999, 0)")
    page.wait_for_selector(".wide.scrolls:not(.more)")


def check_drawn(page: Any, pages: dict[str, Path]) -> None:
    """All charts of a run are on the page, and have marks."""
    expected = {f"chart-{figure.key}" for figure in figures(build([str(pages["one"].parent / "runs/0")]).sections)}
    marks = drawn(page)
    assert set(marks) == expected
    assert all(marks.values()), marks


def test_every_chart_of_a_run_draws_has_a_name_for_those_who_do_not_see_it_and_prints(
    pages: dict[str, Path], opened: Open
) -> None:
    page = opened(pages["one"].as_uri())
    check_drawn(page, pages)
    names = page.evaluate(
        "[...document.querySelectorAll('.chart svg')].map(svg => svg.getAttribute('aria-label') || "
        "svg.querySelector('[aria-label]').getAttribute('aria-label'))"
    )
    assert all(len(name) > 20 for name in names)
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_every_chart_of_a_hostile_run_draws_and_a_tip_shows_its_text_as_text(
    pages: dict[str, Path], opened: Open
) -> None:
    page = opened(pages["evil"].as_uri())
    check_drawn(page, pages)
    page.locator("#chart-shares .mark-rect path").first.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "<script>alert(1)" in tip.inner_text()
    assert tip.locator("script").count() == 0


def test_the_keyboard_reaches_everything_in_order_and_opens_the_charts_of_single_runs(
    pages: dict[str, Path], opened: Open
) -> None:
    page = opened(pages["several"].as_uri())
    before = drawn(page)
    assert all(before.values())
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.innerText || document.activeElement.id"))
    assert reached[:4] == ["Skip to the report", "Dark colours", "Comparison", "Learning"]
    page.focus("#run-1 > summary")
    page.keyboard.press("Enter")
    expect(page.locator("#run-1 .chart:not(:has(svg))")).to_have_count(0)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert all(drawn(page, "#run-1").values())
    assert set(drawn(page)) > set(before)
    page.focus("a.skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_an_entry_of_a_legend_highlights_its_line_whatever_its_name(pages: dict[str, Path], opened: Open) -> None:
    page = opened(pages["several"].as_uri())
    button = page.locator("#chart-score-1").locator("xpath=..").locator(".legend button").first
    lines = "[...document.querySelectorAll('#chart-score-1 .mark-line path')].map(path => path.getAttribute('opacity'))"
    faded = page.locator("#chart-score-1 .mark-line path[opacity='0.12']")
    before = page.evaluate(lines)
    button.click()
    expect(faded).not_to_have_count(0)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    expect(faded).to_have_count(0)
    assert page.evaluate(lines) == before


def test_every_chart_draws_whatever_the_numbers_and_names_of_scores(tmp_path: Path, opened: Open) -> None:
    path = record(tmp_path / "run")
    rows = events(12)
    for row in rows:
        if row["event"] == "advance":
            row |= {"loss": 5e-324 if row["round"] % 2 else 1e99, "delays": [1, 12]}
        if row["event"] == "evaluation":
            row |= {"loss": -1e308 if row["round"] % 2 else 1e308, ODD: 1.0}
    (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "page.html").write_text(build([str(path)]).html(), "utf-8")
    page = opened((tmp_path / "page.html").as_uri())
    marks = drawn(page)
    assert "chart-score-3" in marks
    assert all(marks.values()), marks
    assert (
        page.evaluate(
            "[...document.querySelectorAll('.chart svg path')].filter(p => /NaN|Inf/.test(p.outerHTML)).length"
        )
        == 0
    )


def test_the_button_switches_between_dark_and_light(pages: dict[str, Path], opened: Open) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def ink() -> str:
        return str(page.evaluate("getComputedStyle(document.querySelector('.chart svg text')).fill"))

    page = opened(pages["one"].as_uri(), color_scheme="dark")
    dark = (ground(), ink())
    page.click("text=Light colours")
    light = (ground(), ink())
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    page.emulate_media(media="print", color_scheme="dark")
    page.click("#main", position={"x": 1, "y": 1})
    assert ink() == "rgb(0, 0, 0)"


def test_the_report_of_the_demo_draws(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--rounds", "2", "--out", str(tmp_path / "demo")])
    page = opened((tmp_path / "demo/report.html").as_uri())
    marks = drawn(page)
    expected = {"score-1", "score-2", "training-loss", "shares", "clipped", "local-clipped"}
    assert set(marks) == {f"chart-{key}" for key in expected}
    assert all(marks.values())
    assert page.locator("details.run").count() == 5
    assert "reaches a test accuracy of 90.0%" in page.inner_text("main")


def test_a_page_that_is_served_follows_its_run(tmp_path: Path, opened: Open) -> None:
    path = record(tmp_path / "run", rounds=3, torn=True)
    with serve([str(path)], 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            page = opened(address, also=(f"{address}state",))
            assert "updates itself" in page.inner_text("#live")
            page.evaluate("scrollTo(0, 700)")
            (path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events(12)))
            write(path / "summary.json", {"status": "finished", "reason": None, "rounds": 12, "seconds": 1.0})
            page.wait_for_selector("#live:has-text('the run has ended (finished)')")
            assert "12 of 12" in page.inner_text("main")
            assert all(drawn(page).values())
            assert page.evaluate("scrollY") == 700
        finally:
            server.shutdown()
            thread.join()
