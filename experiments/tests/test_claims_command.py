"""`reproduce claims`, on experiments that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import claims, trials
from experiments.claims import Check, Claim, ClaimLine
from experiments.page import marks, new_page
from experiments.tests.conftest import Command

TRIAL = trials.ClaimTrial("Clip²", rounds=10)


def tiny() -> Claim:
    """Claim 4 with one tuned trial of ten rounds."""
    tuned = trials.Tuned(TRIAL, {"lr": (0.1, 1.0), "clip": (0.003,)})

    def rule(lines: list[ClaimLine], scale: claims.Scale, result_of: trials.ResultOf) -> claims.RuleOutcome:
        return [Check("it is tiny", True), Check("it is large", False)], True, "it ends"

    return Claim(4, lambda scale, best: best, rule, tuned=lambda scale: [tuned])


@pytest.fixture
def small(experiment: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(claims, "CLAIMS", (tiny(),))
    return lambda *argv: experiment("claims", *argv)


def test_what_is_tuned_is_tuned_first_and_nothing_is_run_twice(small: Command) -> None:
    done = small("--fast", "--jobs", "2")
    assert (done.code, done.err) == (0, "")
    assert "   in part\n     holds: it is tiny\n     fails: it is large\n     also observed: it ends\n" in done.out
    assert "   rule: On both fleets SGDClip and SD-SGDClip have at most 20 %" in done.out
    files = sorted(Path("runs/claims").glob("*.json"))
    assert len(files) == 2 + 3, "two trials, and three seeds of the better one"
    before = [file.stat().st_mtime_ns for file in files]
    told = small("--fast", "--json").json["claims"]
    assert [file.stat().st_mtime_ns for file in files] == before
    assert [(one["claim"], one["verdict"], one["remarks"]) for one in told] == [(4, "in part", "it ends")]
    assert told[0]["lines"][0]["given"]["clip"] == 0.003
    assert small("--fast", "--read").code == 0


def test_the_page_gets_verdicts_tables_and_pictures(small: Command) -> None:
    assert small("--fast", "--page", "docs/page.md").code == 0
    text = Path("docs/page.md").read_text("utf-8")
    before, _, _ = new_page("claims").partition(marks("claims")[0])
    assert text.startswith(before)
    assert "Made by `python -m experiments.claims --fast`" in text
    assert "| Clip² | client | large | 4 |" in text
    assert "at the grid's edge: lr, clip |" in text
    assert "- holds: it is tiny\n- **fails**: it is large\n\nAlso observed: it ends." in text
    assert Path("docs/images/claim-4.svg").read_bytes().startswith(b"<svg")
    assert small("--fast", "--page", "docs/page.md").code == 0
    assert Path("docs/page.md").read_text("utf-8") == text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--only", "9"], "--only must be one of 4, got 9."),
        (
            ["--only", "4", "--page", "page.md"],
            "--page needs all claims, got --only. Leave out one of the two options.",
        ),
        (["--fast", "--read"], "--read needs every run to be stored, got 'runs/claims' without 2 of claim 4."),
        (["--jobs", "-1"], "Invalid value for '--jobs'"),
    ],
)
def test_broken_rules_are_said_in_a_line(small: Command, argv: list[str], said: str) -> None:
    code, out, err = small(*argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not Path("runs").exists()


def test_a_page_without_a_place_is_left_alone_before_anything_is_run(small: Command) -> None:
    Path("mine.md").write_text("my thesis")
    code, _, err = small("--fast", "--page", "mine.md")
    assert code == 2
    assert "a place for the claims" in err
    assert Path("mine.md").read_text() == "my thesis"
    assert not Path("runs").exists()
