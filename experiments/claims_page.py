"""The verdicts on the claims as Markdown, with their tables and charts."""

from __future__ import annotations

from pathlib import Path

from experiments import paper
from experiments.claims import Claim, ClaimLine, ClaimResult, Scale, texts
from experiments.claims_charts import picture
from experiments.page import table
from experiments.trials import (
    BUFFER,
    LOCAL_CLIP,
    LOCAL_LR,
    LOCAL_STEPS,
    ROUNDS,
    TASK,
    TASK_TEXT,
    TUNING,
    ResultOf,
)
from tardygrad.results.theme import write

HEADINGS = (
    "method",
    "mode",
    "stragglers",
    "M",
    "settings",
    "accuracy (%)",
    "paper's best (%)",
    "time (s)",
    "Δ clipped",
    "",
)


def row(line: ClaimLine) -> tuple[str, ...]:
    """The row of a line."""
    trial = line.trial
    theirs = paper.accuracy(trial)
    return (
        trial.method,
        trial.mode,
        trial.stragglers,
        str(trial.buffer),
        ", ".join(f"{key} {value:g}" for key, value in trial.settings.items()),
        str(line),
        "" if theirs is None else f"{theirs:.1f}",
        f"{line.time:,.0f}",
        f"{line.clipped:.0%}" if "clip" in trial.settings else "",
        line.note,
    )


def text(findings: dict[Claim, ClaimResult], scale: Scale, command: str) -> str:
    """The section of a page."""
    words = texts()
    first, last = scale.seeds[0], scale.seeds[-1]
    parts = [
        f"Made by `{command}`. {TASK_TEXT}; "
        f"N = {TASK['clients']}, M = {BUFFER}, K = {LOCAL_STEPS}, T = {ROUNDS}, η_ℓ = {LOCAL_LR}, u = {LOCAL_CLIP} "
        "unless a table says otherwise. Accuracies are those after the last round, mean ± standard deviation over the "
        f"seeds {first} to {last}; settings were tuned on seed {TUNING}. Chance is 10 %.",
        table(
            ("claim", "verdict", "conditions that do not hold"),
            (
                (
                    f"[{claim.number}](#claim-{claim.number}). {words[str(claim.number)]['says']}",
                    f"**{found.verdict}**",
                    "; ".join(check.says for check in found.checks if not check.holds) or "none",
                )
                for claim, found in findings.items()
            ),
        ),
    ]
    for claim, found in findings.items():
        claim_words = words[str(claim.number)]
        parts += [
            f"### Claim {claim.number}",
            claim_words["says"],
            f"*Run:* {claim_words['setup']}",
            f"*Rule:* {claim_words['rule']}",
            f"*Verdict:* **{found.verdict}**.",
            "\n".join(f"- {'holds' if check.holds else '**fails**'}: {check.says}" for check in found.checks),
            *([f"Also observed: {found.remarks}."] if found.remarks else []),
            f"![Claim {claim.number}: {claim_words['says']}](images/claim-{claim.number}.svg)",
            table(HEADINGS, map(row, found.lines)),
        ]
    return "\n\n".join(parts)


def draw(folder: Path, findings: dict[Claim, ClaimResult], result_of: ResultOf, scale: Scale) -> None:
    """Write every claim's picture."""
    for claim, found in findings.items():
        write(picture(claim, found, result_of, scale), folder / f"claim-{claim.number}.svg")
