"""The claims: what is run, and that the verdicts follow from made-up results by the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tardygrad as tg
from experiments import claims, claims_page
from experiments.claims import (
    CLAIMS,
    FAST,
    FULL,
    GRIDS,
    ROUNDS,
    TUNING,
    WIDE_TRIALS,
    Check,
    Claim,
    ClaimLine,
    ClaimTrial,
    ResultOf,
    RuleOutcome,
    Scale,
    Tuned,
)
from experiments.tests.conftest import Script
from tardygrad.sweeps.store import PlannedRun, StoredResult

Score = Callable[[PlannedRun], float | None]


def label(run: PlannedRun) -> str:
    """The method of a run, as in tables."""
    return run.name.rpartition("-")[0].removeprefix("sync-")


def made_up(score: Score) -> ResultOf:
    """The results of runs that were never made."""

    def result_of(run: PlannedRun) -> StoredResult:
        accuracy, method, fleet = score(run), run.spec["method"], run.spec["fleet"]
        buffer, mode = method.get("buffer", 4), method["mode"]
        slow = 70.0 * buffer**0.5 if mode == "sync" else 1.0 * buffer
        slow *= 1.1 if mode == "server" else 1.0
        slow *= 5.0 if fleet["stragglers"] == "large" and mode == "sync" else 1.0
        time = slow * run.spec["run"]["rounds"] / ROUNDS
        curve = [(round, time * round / 20, 1.0, accuracy) for round in (10, 20)]
        return StoredResult("diverged" if accuracy is None else "finished", accuracy, 1.0, time, curve, 0.4, 0.2)

    return result_of


def verdict(number: int, score: Score) -> str:
    return CLAIMS[number - 1].judge(made_up(score), FAST).verdict


def test_every_claim_of_the_paper_is_there_with_its_words() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 8))
    assert sorted(claims.TEXTS) == [str(claim.number) for claim in CLAIMS]
    assert all(sorted(said) == ["rule", "says", "setup"] for said in claims.TEXTS.values())


def test_every_run_of_a_claim_is_a_spec_that_builds() -> None:
    result_of = made_up(lambda run: 90.0)
    for claim in CLAIMS:
        for scale in (FAST, FULL):
            runs = claim.wanted(result_of, scale)
            assert runs
            for run in {run.name: run for run in runs}.values():
                read = tg.load_spec(run.spec)
                assert read.run.rounds % read.run.evaluate_every == 0
    assert {len(Tuned(ClaimTrial("Clip²"), grid).trials()) for grid in GRIDS.values()} == {12}
    assert TUNING not in {*FAST.seeds, *FULL.seeds}


def test_the_best_of_a_grid_is_chosen_and_its_edge_named() -> None:
    tuned = Tuned(ClaimTrial("Clip²"), {"lr": (0.3, 1.0, 3.0), "clip": (0.001, 0.003)})

    def score(run: PlannedRun) -> float | None:
        method = run.spec["method"]
        return None if method["lr"] > 1 else 10 * method["lr"] + method["clip"]

    best = tuned.best(made_up(score))
    assert best == ClaimTrial("Clip²").at(lr=1.0, clip=0.003)
    assert tuned.edges(best) == ["clip"]
    assert tuned.best(lambda run: None) is None


def test_claim_1_wants_the_accuracy_and_the_time() -> None:
    assert verdict(1, lambda run: 95.0) == "reproduced"
    assert verdict(1, lambda run: 95.0 if run.spec["method"]["mode"] == "sync" else 94.1) == "reproduced"
    assert verdict(1, lambda run: 95.0 if run.spec["method"]["mode"] == "sync" else 93.9) == "in part"
    result_of = made_up(lambda run: 95.0)
    assert CLAIMS[0].judge(lambda run: result_of(run)._replace(time=10.0), FAST).verdict == "not reproduced"


def test_claim_2_wants_sgdclip_to_fail_without_waiting_and_clip2_to_hold() -> None:
    def score(clip2: float, hard: float = 30.0) -> Score:
        return lambda run: 97.0 if run.name.startswith("sync") else hard if label(run) == "SGDClip" else clip2

    assert verdict(2, score(90.0)) == "reproduced"
    assert verdict(2, score(60.0)) == "in part"
    assert verdict(2, score(40.0)) == "not reproduced"
    assert verdict(2, score(97.0, hard=95.0)) == "not reproduced"
    assert verdict(2, lambda run: 97.0 if run.spec["method"]["lr"] == 1.0 else score(90.0)(run)) == "in part"


def test_claim_3_wants_sd_to_work_where_plain_fails_and_on_more_of_the_grid() -> None:
    assert verdict(3, lambda run: 90.0 if label(run) == "SD-SGDClip" else 20.0) == "reproduced"
    assert verdict(3, lambda run: 70.0 if label(run) == "SD-SGDClip" else 20.0) == "in part"
    assert verdict(3, lambda run: 20.0) == "not reproduced"
    assert verdict(3, lambda run: 90.0) == "not reproduced", "where plain does not fail SD rescues nothing"
    assert len(WIDE_TRIALS) == 40


def test_claim_4_wants_both_to_collapse_and_clip2_to_hold() -> None:
    def score(plain: float, downplayed: float, clips: float | None) -> Score:
        return lambda run: {"SGDClip": plain, "SD-SGDClip": downplayed}.get(label(run), clips)

    assert verdict(4, score(10, 10, 90)) == "reproduced"
    assert verdict(4, score(10, 85, 90)) == "in part"
    assert verdict(4, score(10, 85, None)) == "in part"
    assert verdict(4, score(90, 85, 60)) == "not reproduced"


def test_claim_5_wants_accuracy_and_time_to_grow_with_m() -> None:
    assert verdict(5, lambda run: 50.0 if run.spec["method"]["buffer"] == 1 else 90.0) == "reproduced"
    assert verdict(5, lambda run: float(run.spec["method"]["buffer"])) == "in part", (
        "beyond M = 10 it must not go on growing"
    )
    assert verdict(5, lambda run: 95.0 - run.spec["method"]["buffer"]) == "not reproduced"


def test_claim_6_wants_both_modes_alike() -> None:
    assert verdict(6, lambda run: 90.0 if run.spec["method"]["mode"] == "server" else 92.0) == "reproduced"
    clip2 = {"lr": 1.0, "clip": 0.003, "mode": "server"}.items()  # DC-Clip² too
    assert verdict(6, lambda run: 95.0 if clip2 <= run.spec["method"].items() else 90.0) == "in part"
    assert verdict(6, lambda run: 80.0 if run.spec["method"]["mode"] == "server" else 92.0) == "not reproduced"


def test_claim_7_wants_ours_above_theirs() -> None:
    theirs = ("FADAS", "DN+DyLU")
    assert verdict(7, lambda run: 80.0 if label(run) in theirs else 90.0) == "reproduced"
    assert verdict(7, lambda run: {"FADAS": 85.0, "SD-Clip²": 80.0}.get(label(run), 86.0)) == "not reproduced"
    assert verdict(7, lambda run: {"FADAS": 85.0, "DN+DyLU": 10.0, "SD-Clip²": 80.0}.get(label(run), 86.0)) == "in part"


def test_the_page_tells_all_and_every_claim_has_its_picture() -> None:
    import vl_convert

    result_of = made_up(lambda run: None if run.spec["method"]["lr"] == 10.0 else 90.0)
    findings = {claim: claim.judge(result_of, FAST) for claim in CLAIMS}
    page = claims_page.text(findings, FAST, "python -m experiments.claims --fast")
    for claim, found in findings.items():
        assert f"### Claim {claim.number}\n\n{claims.TEXTS[str(claim.number)]['says']}" in page
        assert f"*Verdict:* **{found.verdict}**" in page
        assert f"](images/claim-{claim.number}.svg)" in page
        drawn: Any = vl_convert.vegalite_to_svg(claims_page.picture(claim, found, result_of, FAST).to_json())
        assert drawn.count("<path") > 10
    assert "nan" not in page.lower().replace("dominant", "")


@pytest.fixture
def small(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The script with claim 4 alone, and one tuned trial of ten rounds."""
    tuned = Tuned(ClaimTrial("Clip²", rounds=10), {"lr": (0.1, 1.0), "clip": (0.003,)})

    def rule(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
        return [Check("it is tiny", True), Check("it is large", False)], True, "it ends"

    monkeypatch.setattr(claims, "CLAIMS", (Claim(4, lambda scale, best: best, rule, tuned=lambda scale: [tuned]),))
    return lambda *argv: script("claims", "--fast", *argv)


def test_what_is_tuned_is_tuned_first_and_nothing_is_run_twice(small: Script) -> None:
    early = small("--read", "--page", "docs/page.md")
    assert (early.code, early.out) == (2, "")
    assert "tables need all runs, and 2 known ones are missing in 'runs/claims'" in early.err
    done = small("--jobs", "2")
    assert (done.code, done.err.splitlines()[-1].partition(" is done, ")[2]) == (0, "0 known runs are left")
    assert "- holds: it is tiny\n- **fails**: it is large\n\nAlso observed: it ends." in done.out
    files = sorted(Path("runs/claims").glob("*.json"))
    assert len(files) == 2 + 3, "two trials, and three seeds of the better one"
    before = [file.stat().st_mtime_ns for file in files]
    assert small("--page", "docs/page.md").code == 0
    text = Path("docs/page.md").read_text("utf-8")
    assert "Made by `python -m experiments.claims --fast`" in text
    assert "| Clip² | client | large | 4 |" in text
    assert "at the grid's edge: lr, clip |" in text
    assert Path("docs/images/claim-4.svg").read_bytes().startswith(b"<svg")
    assert small("--page", "docs/page.md", "--read").code == 0
    assert Path("docs/page.md").read_text("utf-8") == text
    assert [file.stat().st_mtime_ns for file in files] == before
