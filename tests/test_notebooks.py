"""Notebooks run in a real kernel and show what they store; objects are tables in HTML there, with escaped text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.html_tables import fact_table, html_table

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(900)  # half a minute, if nothing else runs
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_shows_what_it_stores(notebook: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script = [sys.executable, str(ROOT / "tools/notebooks.py"), "--check", str(notebook)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_notebooks_hold_their_source_and_outputs_only() -> None:
    assert len(NOTEBOOKS) == 2
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text("utf-8"))
        assert all(not cell["metadata"] for cell in content["cells"])  # such as the times of execution
        assert str(ROOT) not in notebook.read_text("utf-8")


def test_runs_methods_and_fleets_are_tables_in_a_notebook() -> None:
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.1, buffer=2, local_steps=3)
    fleet = tg.Fleet((tg.Group("<slow>", 3, tg.Uniform(1, 2)), tg.Group("fast", 1, tg.Integer(1, 1))))
    run = tg.simulate(method, tg.tasks.quadratic(clients=4, dimension=5), fleet.crash(client=0, at=1e6), rounds=3)
    assert "<td style='text-align: left'>local_clip</td><td style='text-align: left'>1.0</td>" in method._repr_html_()
    assert "<b>Clip² (server-centric, M=2, K=3)</b>" in method._repr_html_()
    assert "finished" in run._repr_html_()
    assert "simulated seconds" in run._repr_html_()
    assert "Fleet of 4 clients, crashes 1" in fleet.crash(client=0, at=1e6)._repr_html_()
    assert "&lt;slow&gt;" in fleet._repr_html_()
    assert "<slow>" not in fleet._repr_html_()
    assert "Link(" not in fleet._repr_html_()
    assert "Link(latency=2" in fleet.linked(tg.Link(latency=2))._repr_html_()
    many = tg.Fleet(tuple(tg.Group(f"phone {i}", 1, tg.Uniform(1, 2)) for i in range(100)))
    assert many._repr_html_().count("<tr>") == 22
    assert "… and 80 more" in many._repr_html_()


def test_text_in_tables_is_escaped() -> None:
    bad = "<script>alert('&')</script>"
    for page in (html_table([bad], [[bad]], title=bad, right=[True]), fact_table(bad, {bad: bad})):
        assert bad not in page
        assert page.count("&lt;script&gt;") == 3


def test_a_run_shows_its_progress_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method = tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, clip=0.1, buffer=2, local_steps=3)
    run = tg.begin(method, tg.tasks.quadratic(clients=4, dimension=5), tg.Fleet.paper(clients=4), rounds=3)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert [row["round"] for row in tg.progress(run)] == [1, 2, 3]
    line = capsys.readouterr().err.rpartition("\r")[2]
    assert line.startswith("round 3/3 ")
    assert "left" in line
    with pytest.raises(tg.Invalid, match=r"progress needs a run, as from tg\.begin\(\.\.\.\), got Method\."):
        tg.progress(method)  # type: ignore[arg-type]
