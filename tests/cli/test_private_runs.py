"""Private runs on the command line: ε in records, plans and reports, and the secret key of the noise."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tardygrad.report.build import build
from tardygrad.runs.describe import training_facts
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_json, read_lines
from tardygrad.runs.summary import read_summary
from tests.cli.conftest import Command

pytest.importorskip("opacus")

SPEC = ["method.privacy={clip=0.3,noise_multiplier=2.0}"]


def test_records_and_reports_have_epsilon(tardygrad: Command) -> None:
    """`plan` knows it before: it depends on the clock alone."""
    ran = tardygrad("run", "small.toml", *SPEC, "--out", "run", "--json").json
    rows = read_metrics(Path("run/events.jsonl"))
    assert 0 < rows[0]["epsilon"] <= rows[-1]["epsilon"] == ran["epsilon"]
    assert [row["epsilon"] for row in read_lines(Path("run/events.jsonl")) if row["event"] == "advance"] == [
        row["epsilon"] for row in rows
    ]
    planned = tardygrad("plan", "small.toml", *SPEC, "--json").json
    assert (planned["epsilon"], planned["delta"]) == (ran["epsilon"], 1e-5)
    text = f"ε = {ran['epsilon']:.3g}, δ = 1e-05"
    assert f"{text} for each client" in " ".join(tardygrad("plan", "small.toml", *SPEC).out.split())
    tardygrad("run", "small.toml", "--out", "open")
    for paths, private in ((["run"], True), (["run", "open"], True), (["open"], False)):
        page = build(paths).html()
        assert (text in page, "Privacy ε" in page) == (private, private)
    summary = read_summary(Path("run"))
    assert f"| privacy of each client | {text} |" in training_facts(read_json(Path("run/spec.json")), summary)


def test_a_private_record_is_replayed_with_the_key_in_its_checkpoints(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", *SPEC, "--out", "run")
    assert tardygrad("replay", "run").out == "the same bits after 12 rounds\n"
    secret = next(Path("run/checkpoints").glob("*/state.json")).read_text().partition('"key": "')[2][:64]
    assert len(secret) == 64
    for file in (path for path in Path("run").rglob("*") if path.is_file() and "checkpoints" not in path.parts):
        assert secret.encode() not in file.read_bytes()
    shutil.rmtree("run/checkpoints")
    failed = tardygrad("replay", "run")
    assert failed.code == 2
    assert "which has the key of its noise, got none in 'run'. Restore one" in failed.err


def test_without_opacus_a_private_run_says_what_to_install_and_does_not_begin(
    tardygrad: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opacus", None)
    failed = tardygrad("run", "small.toml", *SPEC, "--out", "run")
    assert failed.code == 2
    assert "`privacy` needs opacus to compute ε. Use pip install -c constraints.txt -e '.[privacy]'." in failed.err
    assert not Path("run").exists()
