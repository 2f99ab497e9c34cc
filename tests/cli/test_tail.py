"""`tail`: the probe at the terminal."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Command

QUICK = ("--clients", "4", "--batches", "4")


def test_a_spec_is_looked_at_where_it_begins_and_a_run_where_it_ended(tardygrad: Command) -> None:
    noise = 'task.noise={kind="stable", tail=1.5}'
    fresh = tardygrad("tail", "small.toml", noise, "task.dimension=2000", "--json").json
    assert (fresh["at"], fresh["round"], fresh["clip"]) == ("init", 0, 1.0)
    assert fresh["whole"]["tail"]["verdict"] == "heavy-tailed, infinite variance"
    assert fresh["whole"]["tail"]["index"] == pytest.approx(1.5, rel=0.1)
    assert fresh["layers"] == []
    tardygrad("run", "small.toml", "--out", "run")
    ended = tardygrad("tail", "run", *QUICK, "--json").json
    assert (ended["at"], ended["round"]) == ("model", 12)
    begun = tardygrad("tail", "run", "--at", "init", *QUICK, "--json").json
    assert (begun["at"], begun["round"]) == ("init", 0)
    assert begun["whole"]["gradient"] != ended["whole"]["gradient"]
    assert begun == tardygrad("tail", "small.toml", *QUICK, "--json").json | {"source": "run"}


def test_a_table_has_a_row_for_every_layer(tardygrad: Command) -> None:
    done = tardygrad("tail", "digits", "task.model=mlp", *QUICK)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["all", "1", "3", "5"]
    assert lines[-2] == "4 mini-batches of each of 4 clients, at x_0"
    assert "local_clip=" in lines[-1]
    assert "above 0.03" in lines[0]


def test_a_threshold_is_that_of_the_round_and_of_coordinates_only(tardygrad: Command) -> None:
    falls = "method.local_clip={value=1.0, exponent=-1.0}"
    tardygrad("run", "small.toml", falls, "--out", "run")
    assert tardygrad("tail", "run", *QUICK, "--json").json["clip"] == pytest.approx(1 / 12)
    assert tardygrad("tail", "run", "--at", "init", *QUICK, "--json").json["clip"] == 1.0
    assert tardygrad("tail", "small.toml", "method.norm=l2", *QUICK, "--json").json["clip"] is None


def test_of_a_clipped_length_no_coordinates_are_told(tardygrad: Command) -> None:
    out = tardygrad("tail", "small.toml", "method.norm=l2", *QUICK).out
    assert "above" not in out
    assert "clips 5%" not in out
    seen = tardygrad("tail", "small.toml", "method.norm=l2", *QUICK, "--json").json
    assert out.splitlines()[-1] == f"to clip 5% of all gradients by their norm: local_clip={seen['length']:.3g}"
    assert seen["length"] > 2 * seen["whole"]["gradient"]["0.5"]
    tailopt = "method={kind='tailopt', inner='l2clip', local_clip=1.0, local_lr=0.1, lr=1.0, buffer=2, local_steps=1}"
    assert "by their norm" in tardygrad("tail", "small.toml", tailopt, *QUICK).out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["small.toml", "--at", "model"], "--at model needs a finished run, got 'small.toml'. Use --at init."),
        (["small.toml", "--figure", "a.pdf"], "--figure must be a file that ends in .png or .svg, got 'a.pdf'."),
        (["small.toml", "task.noise="], "a noise probe needs gradients that differ between a client's mini-batches"),
        (["run", "task.dimension=21"], "the model in 'run' must have the shape of the task's model. Do not change"),
    ],
)
def test_what_cannot_be_is_refused(tardygrad: Command, argv: list[str], said: str) -> None:
    if argv[0] == "run":
        tardygrad("run", "small.toml", "--out", "run")
    refused = tardygrad("tail", *argv)
    assert refused.code == 2
    assert said in refused.err
    assert not refused.out
    assert said in json.loads(tardygrad("tail", *argv, "--json").out)["error"]
