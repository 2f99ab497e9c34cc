"""The paper's own regime: every method fine-tunes pretrained transformers on a fleet.

What is run, how settings are chosen and the rules of the verdicts are in regime.toml, which was written before the
runs; it lists later changes. Settings are chosen by successive halving, on validation rows and with a seed that is
used for nothing else; results are on test rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import tardygrad as tg
from experiments import lib
from experiments.lib import Cost, Mode, Values
from experiments.tasks import runnable
from tardygrad import PlannedRun, Store, StoredResult

_ONLY_IF_LATE = ("SD-", "DC-")  # prefixes of methods that differ from the others only if updates are late
_UPDATES_PER_TAIL = 32  # a measurement takes 128 gradients, an update 4


@dataclass(frozen=True)
class RegimeWorkload:
    """A task with a pretrained model, and how long it is trained."""

    name: str
    title: str
    task: Values
    clients: int  # N
    rounds: int  # T
    method: Values  # settings of every method, unless it has its own `local_steps`
    seconds: dict[str, float]  # CPU seconds of an `update` and of an `evaluation`, measured with one thread
    folders: dict[str, str] = field(default_factory=dict)  # settings of the task that are folders below --data
    rungs: list[int] = field(default_factory=list)  # rounds of its trials; empty: those of the plan
    grids: dict[str, Values] = field(default_factory=dict)  # of methods with another grid for this workload
    score: str = "accuracy"  # which of the task's scores is shown


@dataclass(frozen=True)
class MethodGrid:
    """A method and the settings to choose from."""

    name: str
    settings: Values
    grid: dict[str, list[float]]
    buffered: bool = True  # False: every update is a round

    def points(self) -> list[Values]:
        """Every point of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


class Line(NamedTuple):
    """A line of a table: a method on a workload and a fleet, with its chosen settings or a change to them."""

    part: str
    workload: str
    stragglers: str
    mode: Mode
    method: str
    change: str = ""  # label of the change
    tuned: bool = False  # whether the settings are chosen with the change


@dataclass(frozen=True)
class RegimePart:
    """A table: which lines are run with every seed."""

    name: str
    title: str
    workloads: list[str]
    fleets: list[str]
    modes: list[Mode]
    methods: list[str]
    seeds: list[int]
    tails: list[int] = field(default_factory=list)  # rounds after which the tails of gradients are measured
    changes: dict[str, Values] = field(default_factory=lambda: {"": {}})  # by label; keys are dotted
    tuned: bool = False  # whether settings are chosen for each change; else the changes are made to the chosen ones

    def lines(self) -> Iterator[Line]:
        """Every line. SD and DC do nothing in synchronous rounds, so these variants are left out there."""
        for workload, fleet, mode, method, change in product(
            self.workloads, self.fleets, self.modes, self.methods, self.changes
        ):
            if mode != "sync" or not method.startswith(_ONLY_IF_LATE):
                yield Line(self.name, workload, fleet, mode, method, change, self.tuned)

    def with_unchanged(self) -> list[Line]:
        """The lines; each line with a change follows the unchanged line of the part `cells`."""
        lines = [
            (line._replace(part="cells", change="", tuned=False), line) if line.change else (line,)
            for line in self.lines()
        ]
        return list(dict.fromkeys(line for pair in lines for line in pair))


@dataclass(frozen=True)
class RegimePlan:
    """Everything that is run."""

    buffer: int  # M
    tuning_seed: int
    rungs: list[int]  # rounds
    workloads: dict[str, RegimeWorkload]
    methods: dict[str, MethodGrid]
    parts: dict[str, RegimePart]
    claims: dict[str, dict[str, str]]  # what the paper says, and the rule
    texts: dict[str, str]  # of the page

    @classmethod
    def read(cls, text: str) -> RegimePlan:
        """A plan from TOML."""
        raw = tomllib.loads(text)
        parts = {}
        for name, table in raw["part"].items():
            changes = {change.pop("label"): change for change in table.pop("changes", [])} or {"": {}}
            parts[name] = RegimePart(name=name, changes=changes, **{"seeds": raw["seeds"]} | table)
        return cls(
            **{name: raw[name] for name in ("buffer", "tuning_seed", "rungs")},
            workloads={name: RegimeWorkload(name, **table) for name, table in raw["workload"].items()},
            methods={name: MethodGrid(name, **table) for name, table in raw["method"].items()},
            parts=parts,
            claims=raw["claim"],
            texts=raw["text"],
        )

    def method(self, line: Line) -> MethodGrid:
        """The method of a line, with the grid of its workload."""
        return replace(self.methods[line.method], **self.workloads[line.workload].grids.get(line.method, {}))

    def lines(self) -> list[Line]:
        """Every line in the order of the runs: by workload, and within a workload the slower fleet first."""
        every = [line for part in self.parts.values() for line in part.lines()]
        workloads, fleets = list(self.workloads), ("large", "mild")
        return sorted(every, key=lambda line: (workloads.index(line.workload), fleets.index(line.stragglers)))

    def quick(self) -> RegimePlan:
        """The cells of the first workload on the slower fleet, with one seed."""
        cells = self.parts["cells"]
        part = replace(cells, workloads=cells.workloads[:1], fleets=["large"], seeds=cells.seeds[:1])
        return replace(self, parts={"cells": part})

    def only_workload(self, workload: str) -> RegimePlan:
        """The parts of one workload."""
        parts = {
            name: replace(part, workloads=[workload]) for name, part in self.parts.items() if workload in part.workloads
        }
        return replace(self, parts=parts)


@cache
def plan() -> RegimePlan:
    """The plan of the paper's regime."""
    return RegimePlan.read((lib.FOLDER / "regime.toml").read_text(encoding="utf-8"))


class Regime:
    """A plan and its results.

    Args:
        data: the folder with the workloads' data; None: only stored runs are read.
        known_choices: settings that are chosen already, by workload, mode and method.
    """

    def __init__(
        self, plan: RegimePlan, store: Store, data: Path | None = None, known_choices: Mapping[str, Values] = {}
    ) -> None:
        self.plan, self.store, self.data, self.known_choices = plan, store, data, known_choices

    def wanted(self) -> list[PlannedRun]:
        """The runs known so far, in order; their results decide which others follow."""
        return self.unique(run for line in self.plan.lines() for run in self.runs(line) or self._tuning(line)[0])

    def all_runs(self, line: Line) -> list[PlannedRun]:
        """The trials and runs of a line that are known so far, done or not."""
        return self.unique(self.trials(line) + self.runs(line))

    def trials(self, line: Line) -> list[PlannedRun]:
        """The trials of a line's workload, mode and method that are known so far, done or not."""
        return [] if tuning_key(line) in self.known_choices else self._tuning(line)[0]

    def unique(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """The runs without repetitions."""
        return list({self.store.path(run): run for run in runs}.values())

    def with_plan(self, plan: RegimePlan) -> Regime:
        """The same results for another plan, with the settings that this one has chosen."""
        return Regime(plan, self.store, self.data, self.every_choice())

    def runs(self, line: Line) -> list[PlannedRun]:
        """The runs of a line, one for each seed; none while its settings are not chosen."""
        settings = self.chosen(line)
        if settings is None:
            return []
        part = self.plan.parts[line.part]
        runs = [self._run(line, settings, seed, part.changes[line.change]) for seed in part.seeds]
        return [run._replace(name=f"tails-{run.name}", tails=part.tails) for run in runs] if part.tails else runs

    def results(self, line: Line) -> dict[int, StoredResult]:
        """The results of a line's finished runs, by seed."""
        found = {run.spec["run"]["seed"]: self.store.result(run) for run in self.runs(line)}
        return {seed: result for seed, result in found.items() if result}

    def chosen(self, line: Line) -> Values | None:
        """The best settings of a line's workload, mode and method; None while trials are missing."""
        return self.known_choices.get(tuning_key(line)) or self._tuning(line)[1]

    def every_choice(self) -> dict[str, Values]:
        """The settings chosen so far, by workload, mode and method."""
        lines = self.plan.lines()
        return {tuning_key(line): settings for line in lines if (settings := self.chosen(line)) is not None}

    def _tuning(self, line: Line) -> tuple[list[PlannedRun], Values | None]:
        """The trials that choose a line's settings, on the slower fleet, and the best point; None while some miss."""
        cell = line._replace(stragglers="large", mode=_tuned_mode(line))
        change = self.plan.parts[line.part].changes[line.change] if line.tuned else {}

        def trial(point: Values, rounds: int) -> PlannedRun:
            short = {"run.rounds": rounds, "task.score_on": "validation"}
            return self._run(cell, point, self.plan.tuning_seed, change | short)

        rungs = self.plan.workloads[line.workload].rungs or self.plan.rungs
        runs = [partial(trial, rounds=rounds) for rounds in rungs]
        return lib.halve(self.plan.method(line).points(), runs, self.store.result)

    def _run(self, line: Line, point: Values, seed: int, change: Values) -> PlannedRun:
        workload, method = self.plan.workloads[line.workload], self.plan.method(line)
        buffer = {"buffer": self.plan.buffer} if method.buffered else {}
        local = {} if "local_steps" in method.settings else workload.method
        spec: Values = {
            "task": runnable({"clients": workload.clients, **workload.task, **self._folders(workload)}),
            "fleet": {"kind": "paper", "stragglers": line.stragglers},
            "method": {**method.settings, **local, **buffer, **point, "mode": line.mode},
            "engine": {"kind": "sim"},
            "run": {"rounds": workload.rounds, "seed": seed},
        }
        for path, value in deepcopy(change).items():
            table, _, name = path.rpartition(".")
            (spec[table] if table else spec)[name] = value
        rounds = self.plan.buffer * spec["run"]["rounds"] // spec["method"].get("buffer", 1)
        every = rounds if "task.score_on" in change else max(rounds // 5, 1)
        spec["run"] |= {"rounds": rounds, "evaluate_every": every, "checkpoint_every": rounds}
        name = "-".join((line.workload, line.mode, line.method, line.stragglers, f"seed{seed}"))
        return PlannedRun(name, spec, workload.score)

    def _folders(self, workload: RegimeWorkload) -> Values:
        if self.data is None:
            return dict.fromkeys(workload.folders, "")
        found = {name: self.data / folder for name, folder in workload.folders.items()}
        if missing := [f"{path.name}/" for path in found.values() if not path.is_dir()]:
            raise tg.Invalid(f"`--data` must be a folder with {', '.join(missing)}, got {str(self.data)!r}.")
        return {name: str(path.resolve()) for name, path in found.items()}


def _tuned_mode(line: Line) -> Mode:
    """The mode in which a line's settings are chosen: sync for itself, client-centric for both asynchronous modes."""
    return "sync" if line.mode == "sync" else "client"


def tuning_key(line: Line) -> str:
    """The workload, mode, method and change that a line's settings are chosen for."""
    return ", ".join((line.workload, _tuned_mode(line), line.method, *([line.change] if line.tuned else [])))


def costs(regime: Regime) -> list[Cost]:
    """What each part and workload takes; a run that several parts share counts only for the first."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in regime.plan.lines():
        groups.setdefault((line.workload, line.part), []).append(line)
    found, counted = [], set[Path]()
    for (name, part), lines in groups.items():
        runs = {regime.store.path(run): run for line in lines for run in regime.all_runs(line)}
        seconds = [cpu_seconds(run, regime.plan.workloads[name]) for path, run in runs.items() if path not in counted]
        counted |= runs.keys()
        found.append(Cost(name, part, len(seconds), sum(seconds)))
    return found


def cpu_seconds(run: PlannedRun, workload: RegimeWorkload) -> float:
    """The CPU seconds that a run takes, by the measured times of its workload."""
    method, length = run.spec["method"], run.spec["run"]
    epochs = method.get("local_epochs", 1) * method.get("buffer", 1)  # 4 local steps are an epoch
    updates = length["rounds"] * epochs + _UPDATES_PER_TAIL * len(run.tails)
    evaluations = length["rounds"] / length["evaluate_every"]
    return float(updates * workload.seconds["update"] + evaluations * workload.seconds["evaluation"])


class Repetition:
    """The runs of `RegimePlan.quick`, done once more.

    Args:
        shipped: the stored runs, as `Store.row` has them.
        folder: where the repeated runs are stored.
        data: the folder with the workload's data.
    """

    def __init__(self, plan: RegimePlan, shipped: Sequence[Values], folder: Path, data: Path | None) -> None:
        self.workload = plan.parts["cells"].workloads[0]
        known = Store(folder / "stored", known=shipped)  # without the repeated ones in `folder`
        chosen = Regime(plan, known).every_choice()
        quick, alone = plan.quick(), plan.only_workload(self.workload)
        if missing := {name for line in quick.lines() if (name := tuning_key(line)) not in chosen}:
            rule = "--quick needs settings that the whole plan has chosen"
            raise tg.Invalid(f"{rule}, and those of {'; '.join(sorted(missing))} are not chosen yet. Leave it out.")
        repeats = {known.path(run) for run in Regime(quick, known, known_choices=chosen).wanted()}
        others = [row for row in shipped if known.path(PlannedRun(row["name"], row["spec"])) not in repeats]
        self.store = Store(folder, records=True, known=others)
        self.runs = Regime(quick, self.store, data, chosen)
        self._before, self._after = Regime(alone, known, known_choices=chosen), Regime(alone, self.store, data, chosen)

    def text(self) -> str:
        """The repeated runs beside the stored ones, and the verdicts for the workload with each of them."""
        from experiments.regime_claims import judge

        rows = []
        for line in self.runs.plan.lines():
            stored = self._before.results(line)
            for seed, result in self.runs.results(line).items():
                scores = _score(stored.get(seed)), _score(result)
                rows.append((line.mode, line.method, str(seed), *scores, "yes" if scores[0] == scores[1] else "no"))
        before, after = judge(self._before), judge(self._after)
        return "\n\n".join(
            (
                f"Repeated runs of {self.workload}, large stragglers:",
                lib.table(("mode", "method", "seed", "stored (%)", "repeated (%)", "equal"), rows),
                f"Verdicts for {self.workload} alone, with these runs in place of the stored ones:",
                *(
                    f"{letter}. {self.runs.plan.claims[letter]['says']} {found.verdict} "
                    f"(stored runs: {before[letter].verdict}). {found.numbers}".strip()
                    for letter, found in after.items()
                ),
            )
        )


def _score(result: StoredResult | None) -> str:
    if result is None:
        return "not stored"
    return "did not finish" if result.accuracy is None else f"{result.accuracy:.2f}"


def main(argv: list[str] | None = None) -> None:
    """Run what is missing of the paper's regime, and make the verdicts and tables."""
    from experiments import regime_page

    names = ("--page", "--data", "--only", "--jobs", "--read", "--save")
    quick = {"action": "store_true", "help": "repeat stored runs of one task with one seed, in half an hour"}
    given = lib.options(__doc__, argv, *names, quick=quick, out=lib.out("runs/regime"))
    sections = ("regime verdicts", "regime tables")
    lib.check_page(given.page, *sections)
    whole, stored = plan(), lib.stored_runs("regime")
    if given.quick:
        if given.page or given.save:
            raise tg.Invalid("--quick has its own runs and no page. Leave out --page and --save.")
        repetition = Repetition(whole, stored, given.out / "quick", given.data)
        lib.do_missing(repetition.store, repetition.runs.wanted, given)
        print(repetition.text())
        return
    store = tg.Store(given.out, records=True, known=stored)
    regime = Regime(whole, store, given.data)
    lib.do_missing(store, regime.wanted, given)
    if given.save:
        runs = regime.unique(run for line in whole.lines() for run in regime.all_runs(line))
        lib.save_runs(given.save, store, runs)
    lib.require_all(store, regime.wanted)
    texts = regime_page.verdicts(regime), regime_page.tables(regime, "python -m experiments.regime")
    lib.publish(given.page, dict(zip(sections, texts, strict=True)), lambda to: regime_page.draw(regime, to))


if __name__ == "__main__":
    lib.run_script(main)
