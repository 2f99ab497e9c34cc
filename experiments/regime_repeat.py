"""Repeat a few stored runs of the paper's regime, and judge their workload with the new ones: `--quick`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.regime import Regime, RegimePlan, tuning_key
from experiments.regime_claims import Judgement, judge
from tardygrad.errors import Invalid
from tardygrad.runs.record import Row
from tardygrad.sweeps.store import PlannedRun, Store


class RepeatedRun(NamedTuple):
    """The scores of a run, in per cent; None: did not finish."""

    mode: str
    method: str
    seed: int
    is_stored: bool
    stored: float | None  # also None if it is not stored
    repeated: float | None

    @property
    def is_equal(self) -> bool:
        """Whether the repeated run has the stored score."""
        return self.is_stored and self.stored == self.repeated


class Repetition:
    """The runs of `RegimePlan.quick`, done once more.

    Args:
        shipped: the stored runs, as `Store.summary` has them.
        folder: where the repeated runs are stored.
        data: the folder with the workload's data.
    """

    def __init__(self, plan: RegimePlan, shipped: Sequence[Row], folder: Path, data: Path | None) -> None:
        self.workload = plan.parts["cells"].workloads[0]
        known = Store(folder / "stored", known=shipped)  # without the repeated ones in `folder`
        chosen = Regime(plan, known).every_choice()
        quick, alone = plan.quick(), plan.only_workload(self.workload)
        if missing := {name for line in quick.lines() if (name := tuning_key(line)) not in chosen}:
            rule = "--quick needs settings that the whole plan has chosen"
            raise Invalid(f"{rule}, and those of {'; '.join(sorted(missing))} are not chosen yet. Leave it out.")
        repeats = {known.path(run) for run in Regime(quick, known, known_choices=chosen).wanted()}
        others = [row for row in shipped if known.path(PlannedRun(row["name"], row["spec"])) not in repeats]
        self.store = Store(folder, records=True, known=others)
        self.runs = Regime(quick, self.store, data, chosen)
        self._before, self._after = Regime(alone, known, known_choices=chosen), Regime(alone, self.store, data, chosen)

    def scores(self) -> list[RepeatedRun]:
        """The runs that were repeated, beside the stored ones."""
        found = []
        for line in self.runs.plan.lines():
            before = self._before.results(line)
            for seed, result in self.runs.results(line).items():
                score = before[seed].accuracy if seed in before else None
                found.append(RepeatedRun(line.mode, line.method, seed, seed in before, score, result.accuracy))
        return found

    def verdicts(self) -> dict[str, tuple[Judgement, Judgement]]:
        """The verdicts for the workload, by claim: of the stored runs, and with the repeated ones in their place."""
        before, after = judge(self._before), judge(self._after)
        return {letter: (before[letter], after[letter]) for letter in before}
