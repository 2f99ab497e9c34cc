"""theory: a table, an object, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Command

ASKED = ("theory", "--tail", "1.5", "--rounds", "10000")


def test_the_object_has_every_method_with_its_numbers(tardygrad: Command) -> None:
    told = tardygrad(*ASKED, "--json").json
    rows = {row["method"]: row for row in told["methods"]}
    assert list(rows) == [
        *("sgdclip", "clip2", "clip2-tolerant", "clip2-unknown-tail"),
        *("sd-sgdclip", "sd-clip2", "dc-clip2"),
    ]
    clip2 = rows["clip2"]
    assert clip2["exponents"] == {"lr": -0.5, "local_lr": -0.375, "local_clip": 0.25, "clip": 0.0}
    assert (clip2["rate"], clip2["tolerance"], clip2["source"]) == (0.125, 0.375, "Theorem 5")
    assert (clip2["bound"], clip2["delay"]) == pytest.approx((10_000**-0.125, 10_000**0.375))
    assert [row["source"] for row in told["bounds"]] == ["Theorem 6", "Corollary 8", "Theorem 9", "Corollary 11"]
    for row in told["bounds"]:
        assert row["bound"] == pytest.approx(sum(row["terms"].values()))


def test_the_table_is_for_people(tardygrad: Command) -> None:
    out = tardygrad(*ASKED, "--method", "sd-clip2", "--delay", "100").out
    for words in ("T^-0.0833", "0.464", "T^0.417", "46.42", "Theorem 2", "Corollary 11", "violated", "nothing"):
        assert words in out
    assert "If every delay" not in tardygrad(*ASKED, "--method", "clip2").out


@pytest.mark.parametrize("name", ["clip2-unknown-tail", "sd-clip2", None])
def test_it_ends_with_a_schedule_that_runs_as_it_is(name: str | None, tardygrad: Command) -> None:
    method = () if name is None else ("--method", name)
    out = tardygrad(*ASKED, *method, "--buffer", "2", "--local-steps", "3").out
    assert "You may conclude: " in out
    assert "You may not conclude: the loss after T rounds" in out
    assert "constants are unknown" in out
    pasted = out[out.index("[method]") :]
    rest = SMALL[: SMALL.index("[method]")] + SMALL[SMALL.index("[run]") :]
    Path("pasted.toml").write_text(f"{rest}\n{pasted}")
    assert tardygrad("run", "pasted.toml", "run.rounds=3", "--out", "run").code == 0
    facts = tardygrad(*ASKED, *method, "--buffer", "2", "--local-steps", "3", "--json").json
    assert tomllib.loads(pasted)["method"] == facts["schedule"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--tail", "1", "--rounds", "10"), "`tail` must be above 1 and at most 2 (finite variance), got 1.0."),
        (("--tail", "1.5", "--rounds", "9" * 400), "--rounds must be a whole number from 1 to 10^18"),
        (("--tail", "1.5", "--rounds", "9", "--method", "sgdclp"), "Did you mean 'sgdclip'?"),
    ],
)
def test_what_breaks_a_rule_is_refused(tardygrad: Command, argv: tuple[str, ...], complaint: str) -> None:
    code, out, err = tardygrad("theory", *argv)
    assert (code, out) == (2, "")
    assert complaint in err
