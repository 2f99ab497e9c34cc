"""export: tables that hold what the record holds."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tardygrad.runs import export
from tardygrad.runs.events import read_metrics
from tardygrad.runs.record import read_lines
from tests.cli.conftest import Command
from tests.records import without_checks

CRASH = "fleet.crashes=[{client=0, at=3, back=5}]"


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines(path: str) -> list[dict[str, Any]]:
    return list(read_lines(Path(path)))


def test_the_tables_hold_what_the_record_holds(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", CRASH, "method.downplay=true", "--out", "here")
    code, out, _ = tardygrad("export", "here")
    rounds, events = read_metrics(Path("here/events.jsonl")), lines("here/events.jsonl")
    arrivals = [row for row in events if row["event"] == "arrival"]
    assert code == 0
    assert out.splitlines() == [
        "here/export/metrics.csv  12 rows",
        f"here/export/updates.csv  {len(arrivals)} rows",
        f"here/export/events.csv  {len(events)} rows",
    ]
    metrics = table("here/export/metrics.csv")
    assert [(int(row["round"]), float(row["loss"])) for row in metrics] == [
        (row["round"], row["loss"]) for row in rounds
    ]
    assert [float(row["delay_mean"]) for row in metrics] == [sum(row["delays"]) / 2 for row in rounds]
    assert [int(row["delay_max"]) for row in metrics] == [max(row["delays"]) for row in rounds]
    assert [row["round"] for row in metrics if row["test_loss"]] == ["10", "12"]
    assert [row["event"] for row in table("here/export/events.csv")] == [row["event"] for row in events]


def test_an_update_has_its_round_its_class_and_the_time_its_job_began(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", CRASH, "method.downplay=true", "run.rounds=40", "--out", "here")
    tardygrad("export", "here")
    updates = table("here/export/updates.csv")
    for row in read_metrics(Path("here/events.jsonl")):
        used = [one for one in updates if one["round"] == str(row["round"])]
        assert [int(one["client"]) for one in used] == row["clients"]
        assert [int(one["delay"]) for one in used] == row["delays"]
        assert [float(one["weight"]) for one in used] == row["weights"]
        assert [float(one["norm"]) for one in used] == row["norms"]
    sent = {
        (row["client"], row["serial"]): row["time"] for row in lines("here/events.jsonl") if row["event"] == "dispatch"
    }
    for one in updates:
        assert float(one["start_time"]) == sent[int(one["client"]), int(one["serial"])]
        assert float(one["start_time"]) < float(one["arrival_time"])
    slow = {one["class"] for one in updates if float(one["arrival_time"]) - float(one["start_time"]) >= 20}
    assert slow == {"large"}


def test_parquet_holds_the_same_as_csv(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data")
    monkeypatch.setattr(export, "BATCH", 5)  # several batches
    tardygrad("run", "small.toml", CRASH, "--out", "here")
    result = tardygrad("export", "here", "--csv", "--parquet", "--json")
    assert [Path(one["path"]).name for one in result.json["files"]] == [
        f"{name}.{kind}" for kind in ("csv", "parquet") for name in ("metrics", "updates", "events")
    ]
    for one in result.json["files"][3:]:
        read = parquet.read_table(one["path"]).to_pylist()
        assert len(read) == one["rows"]
        written = table(one["path"].replace(".parquet", ".csv"))
        assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in read] == written
    updates = parquet.read_table("here/export/updates.parquet").schema
    assert (str(updates.field("client").type), str(updates.field("loss").type)) == ("int64", "double")


def test_several_runs_are_one_table_with_their_names(tardygrad: Command) -> None:
    tardygrad("run", "small.toml")
    tardygrad("run", "small.toml", "run.evaluate_every=0")
    assert tardygrad("export", "runs/small-1", "runs/small-2", "--out", "both").code == 0
    metrics = table("both/metrics.csv")
    assert [row["run"] for row in metrics] == ["runs/small-1"] * 12 + ["runs/small-2"] * 12
    assert [bool(row["test_loss"]) for row in metrics[-13:]] == [True] + [False] * 12


def test_nothing_is_overwritten_without_force(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    tardygrad("export", "here")
    Path("here/export/events.csv").write_text("mine")
    assert tardygrad("export", "here") == (
        2,
        "",
        "error: 'here/export/metrics.csv' already exists. Add --force, or choose another --out.\n",
    )
    assert Path("here/export/events.csv").read_text() == "mine"
    assert tardygrad("export", "here", "--force").code == 0
    assert Path("here/export/events.csv").read_text() != "mine"


def test_text_that_a_spreadsheet_would_run_is_quoted(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    without_checks("here")
    spec = json.loads(Path("here/spec.json").read_text())
    spec["classes"] = [["=cmd|' /C calc'!A0", 8]]
    Path("here/spec.json").write_text(json.dumps(spec))
    with Path("here/events.jsonl").open("a") as file:
        file.write('{"event":"refusal","time":-1.5,"client":0,"serial":0,"round":0,"reason":"@SUM(A1)","+name":"-2"}\n')
    tardygrad("export", "here")
    assert {row["class"] for row in table("here/export/updates.csv")} == {"'=cmd|' /C calc'!A0"}
    last = table("here/export/events.csv")[-1]
    assert (last["reason"], last["time"], last["'+name"]) == ("'@SUM(A1)", "-1.5", "'-2")


@pytest.mark.parametrize(
    ("argv", "fragment"),
    [
        (
            ["empty"],
            "'empty' contains no runs or sweeps. Pass a run or sweep directory",
        ),
        (["swept"], "an export needs runs, got only sweeps. Use `tardygrad report` for sweeps."),
        (["runs", "copy"], "several runs need a directory for their tables, got 2 runs. Add --out DIR."),
    ],
)
def test_what_cannot_be_exported_is_one_line(argv: list[str], fragment: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml")
    shutil.copytree("runs/small-1", "copy")
    Path("empty").mkdir()
    Path("swept").mkdir()
    Path("swept/sweep.json").write_text("{}")
    code, out, err = tardygrad("export", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert fragment in err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("events.jsonl", "{\n"),
        ("events.jsonl", '{"event": "arrival"}\n'),
    ],
)
def test_a_damaged_record_leaves_no_table(name: str, text: str, tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    with Path("here", name).open("a") as file:
        file.write(text)
    code, out, err = tardygrad("export", "here")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "damaged" in err
    assert not list(Path("here").glob("export/*"))


def test_a_torn_last_line_is_left_out(tardygrad: Command) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    with Path("here/events.jsonl").open("a") as file:
        file.write('{"event": "advance", "ti')
    Path("here/summary.json").unlink()  # as if it was killed
    tardygrad("export", "here")
    assert len(table("here/export/metrics.csv")) == 12


def test_the_model_of_a_run_is_written_for_hugging_face(tardygrad: Command) -> None:
    settings = ("run.rounds=2", "run.evaluate_every=2", "task.model=mlp")
    tardygrad("run", "digits", *settings, "--out", "here")
    code, out, err = tardygrad("export", "here", "--hf", "there")
    assert (code, out.splitlines(), err) == (0, ["there/README.md", "there/model.safetensors"], "")
    saved = load_file("there/model.safetensors")
    assert torch.equal(torch.cat([tensor.flatten() for tensor in saved.values()]).sort()[0],
                       load_file("here/model.safetensors")["x"].sort()[0])  # fmt: skip
    card = Path("there/README.md").read_text("utf-8")
    accuracy = json.loads(Path("here/summary.json").read_text())["accuracy"]
    assert f"| test accuracy | {accuracy:.4g} |" in card
    assert "stragglers = large" in card
    assert tardygrad("export", "here", "--hf", "there").err.startswith("error: 'there' is not empty.")
    assert tardygrad("export", "here", "--hf", "there", "--force", "--json").json["files"] == out.splitlines()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("here", "--hf", "there"), "--hf needs a task with a network, got 'quadratic', which has none."),
        (("here", "--hf", "there", "--csv"), "--hf writes a model and no tables."),
        (("here", "here", "--hf", "there"), "--hf writes the model of one run, got 2."),
    ],
)
def test_what_has_no_model_is_named(tardygrad: Command, options: tuple[str, ...], complaint: str) -> None:
    tardygrad("run", "small.toml", "--out", "here")
    code, _, err = tardygrad("export", *options)
    assert (code, err.startswith(f"error: {complaint}")) == (2, True)
    Path("here/model.safetensors").unlink()
    assert "--hf needs a run that has ended" in tardygrad("export", "here", "--hf", "there").err
