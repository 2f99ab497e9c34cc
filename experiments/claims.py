"""The paper's seven claims, each as an experiment whose runs and rule for the verdict were fixed before the results.

All trials use one task: digits, a perceptron with 3,466 parameters, and Student-t noise of tail 1.5, whose variance is
infinite, on every gradient. N = 40, K = 5, T = 280, u = 0.1, η_ℓ = 0.3 unless a trial says otherwise. Settings that
are not tuned come from a pilot on the seed for tuning, which no verdict uses. A verdict is `reproduced`, `in part`
(only a part of the claim holds) or `not reproduced`; claims.toml has the claims and the rules in words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import mean
from typing import Any, Literal, NamedTuple

import tardygrad as tg
from experiments import lib
from experiments.lib import FLEETS, KINDS, Mode, ResultOf, Stragglers
from tardygrad import PlannedRun

_PLAN = tomllib.loads((lib.FOLDER / "claims.toml").read_text(encoding="utf-8"))
TASK: dict[str, Any] = _PLAN["task"]
GRIDS: dict[str, dict[str, list[float]]] = _PLAN["grid"]
"""Twelve trials for each tuned method."""
FIXED: dict[str, dict[str, float]] = _PLAN["fixed"]
"""Settings at which each method works with M = 4 on the large fleet, from the pilot."""
TEXTS: dict[str, dict[str, str]] = _PLAN["claim"]
"""By the claim's number: what the paper says, what is run, and the rule for the verdict."""
ROUNDS, BUFFER, LOCAL_STEPS, LOCAL_LR, LOCAL_CLIP = 280, 4, 5, 0.3, 0.1
TUNING = 0
"""The seed for tuning; no verdict uses it."""
UNCLIPPED = ("FADAS", "DN+DyLU")
"""Methods that the paper on Clip² runs without local clipping; with it, their label ends in `, clipped`."""
WORKS, FAILS = 80.0, 50.0
"""Accuracies in per cent: a method works from the first on, and fails below the second."""


class Scale(NamedTuple):
    """The size of the experiments."""

    seeds: range
    fleets: tuple[Stragglers, ...]  # of claims 5, 6 and 7; the others use both, or only the large one
    methods: tuple[str, ...]  # of claim 5
    buffers: tuple[int, ...]  # M of claim 5


FAST = Scale(range(1, 4), ("large",), ("SGDClip", "Clip²"), (1, 10, 20))
FULL = Scale(range(1, 11), FLEETS, tuple(FIXED), (1, 10, 20, 30))


@dataclass(frozen=True)
class ClaimTrial:
    """A method with its settings on one of the paper's fleets, without a seed."""

    method: str
    mode: Mode = "client"
    stragglers: Stragglers = "large"
    buffer: int = BUFFER  # M
    rounds: int = ROUNDS  # T
    given: tuple[tuple[str, float], ...] = ()  # its own settings, besides the common ones

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return f"{'sync-' * (self.mode == 'sync')}{self.method}"

    @property
    def settings(self) -> dict[str, float]:
        """Its own settings, besides the common ones."""
        return dict(self.given)

    def at(self, **settings: float) -> ClaimTrial:
        """The same trial with other settings."""
        return replace(self, given=tuple({**self.settings, **settings}.items()))

    def run(self, seed: int) -> PlannedRun:
        """The run with a seed."""
        kind = KINDS[self.method.removesuffix(", clipped")]
        method = {"local_steps": LOCAL_STEPS, "local_lr": LOCAL_LR, "mode": self.mode, **kind, **self.settings}
        if self.method not in UNCLIPPED:
            method["local_clip"] = LOCAL_CLIP
        if kind["kind"] != "dn_dylu":
            method["buffer"] = self.buffer
        often = 1 if "buffer" in method else BUFFER  # a method whose every arrival is a round gets M times the rounds
        tables = {
            "task": TASK,
            "fleet": {"kind": "paper", "stragglers": self.stragglers},
            "method": method,
            "engine": {"kind": "sim", "batch": TASK["clients"]},  # a third faster, with other last bits
            "run": {"rounds": self.rounds * often, "evaluate_every": 10 * often, "seed": seed},
        }
        return PlannedRun(f"{self.label}-{self.stragglers}", tables)


class Tuned(NamedTuple):
    """A trial whose settings are chosen from a grid, by the final accuracy on the seed for tuning."""

    trial: ClaimTrial
    grid: Mapping[str, Sequence[float]]

    def trials(self) -> list[ClaimTrial]:
        """Every point of the grid."""
        return [self.trial.at(**dict(zip(self.grid, values, strict=True))) for values in product(*self.grid.values())]

    def best(self, result_of: ResultOf) -> ClaimTrial | None:
        """The trial with the best settings; None while a result is missing."""
        return lib.halve(self.trials(), [lambda trial: trial.run(TUNING)], result_of, lib.score_alone)[1]

    def edges(self, best: ClaimTrial) -> list[str]:
        """The settings whose best value is the smallest or the largest of the grid."""
        return [key for key, values in self.grid.items() if best.settings[key] in (min(values), max(values))]


class ClaimLine(NamedTuple):
    """A trial over its seeds: a line of a claim's table."""

    trial: ClaimTrial
    accuracy: float  # in per cent, mean; a run that did not finish counts as 0
    spread: float  # standard deviation
    time: float  # simulated seconds, mean
    clipped: float  # share of Δ_t's coordinates, mean
    note: str = ""

    def __str__(self) -> str:
        return f"{self.accuracy:.1f} ± {self.spread:.1f}"


class Check(NamedTuple):
    """One condition of a rule, with the numbers that decide it."""

    says: str
    holds: bool


class ClaimResult(NamedTuple):
    """The verdict on a claim, and its reasons."""

    verdict: Literal["reproduced", "in part", "not reproduced"]
    checks: list[Check]
    lines: list[ClaimLine]
    remarks: str = ""  # remarks that are not part of the rule


RuleOutcome = tuple[list[Check], bool, str]
"""The checks, whether a part of the claim holds, and remarks."""


class Claim(NamedTuple):
    """A claim: its trials and its rule; `TEXTS` has both in words."""

    number: int
    trials: Callable[[Scale, list[ClaimTrial]], list[ClaimTrial]]  # run with every seed, given the best tuned trials
    rule: Callable[[list[ClaimLine], Scale, ResultOf], RuleOutcome]
    tuned: Callable[[Scale], list[Tuned]] = lambda scale: []
    once: tuple[ClaimTrial, ...] = ()  # run with the first seed only

    def wanted(self, result_of: ResultOf, scale: Scale) -> list[PlannedRun]:
        """The runs known so far; when all of them are done, tuning may add more."""
        trials = [trial.run(TUNING) for tuned in self.tuned(scale) for trial in tuned.trials()]
        each = [trial.run(seed) for trial in self._trials(result_of, scale) for seed in scale.seeds]
        return [*trials, *each, *(trial.run(scale.seeds[0]) for trial in self.once)]

    def _trials(self, result_of: ResultOf, scale: Scale) -> dict[ClaimTrial, str]:
        """The trials to run with every seed, each with a note."""
        edges = {best: each.edges(best) for each in self.tuned(scale) if (best := each.best(result_of))}
        notes = {best: f"at the grid's edge: {', '.join(keys)}" for best, keys in edges.items() if keys}
        trials = self.trials(scale, list(edges))
        notes |= {trial: f"{trial.rounds // ROUNDS} times the rounds" for trial in trials if trial.rounds > ROUNDS}
        return {trial: notes.get(trial, "") for trial in trials}

    def judge(self, result_of: ResultOf, scale: Scale) -> ClaimResult:
        """The verdict; all runs must be done."""
        lines = [over_seeds(result_of, trial, scale, note) for trial, note in self._trials(result_of, scale).items()]
        checks, part, remarks = self.rule(lines, scale, result_of)
        whole = all(check.holds for check in checks)
        return ClaimResult("reproduced" if whole else "in part" if part else "not reproduced", checks, lines, remarks)


def over_seeds(result_of: ResultOf, trial: ClaimTrial, scale: Scale, note: str = "") -> ClaimLine:
    """A trial over the seeds; all its runs must be done."""
    results = [result for seed in scale.seeds if (result := result_of(trial.run(seed)))]
    accuracy, spread = lib.mean_spread([result.accuracy or 0.0 for result in results])
    clipped = mean(result.clipped for result in results)
    return ClaimLine(trial, accuracy, spread or 0.0, lib.mean_time(results), clipped, note)


def _best(lines: Iterable[ClaimLine]) -> ClaimLine:
    return max(lines, key=lambda line: line.accuracy)


# 1 ----------------------------------------------------------------------------- asynchronous against synchronous

FASTER = {"mild": 20, "large": 75}  # the paper's
ROUNDS_FACTOR = 4  # of the longer runs of Clip²


def _tuned_1(scale: Scale) -> list[Tuned]:
    """Stragglers change only the clock of a synchronous run, so it is tuned once."""
    sync = [Tuned(ClaimTrial(method, "sync"), GRIDS[method]) for method in ("SGDClip", "Clip²")]
    return sync + [
        Tuned(ClaimTrial(each.trial.method, "client", fleet), each.grid) for fleet in FLEETS for each in sync
    ]


def _trials_1(scale: Scale, best: list[ClaimTrial]) -> list[ClaimTrial]:
    mild = [replace(trial, stragglers="mild") for trial in best if trial.mode == "sync"]
    clip2 = [trial for trial in best if trial.mode == "client" and trial.method == "Clip²"]
    return best + mild + [replace(trial, rounds=ROUNDS_FACTOR * ROUNDS) for trial in clip2]


def _rule_1(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    near, fast, remarks = [], [], []
    for fleet in FLEETS:
        here = [line for line in lines if line.trial.stragglers == fleet]
        short = [line for line in here if line.trial.rounds == ROUNDS]
        sync, client = (_best(line for line in short if line.trial.mode == mode) for mode in ("sync", "client"))
        gap, times = client.accuracy - sync.accuracy, sync.time / client.time
        near.append(Check(f"{fleet}: at most 1 point behind ({client} against {sync})", gap >= -1.0))
        fast.append(
            Check(f"{fleet}: at least {FASTER[fleet] / 2:g} times less time ({times:.0f})", times >= FASTER[fleet] / 2)
        )
        long = next(line for line in here if line.trial.rounds != ROUNDS)
        remarks.append(f"{fleet} {long} in {sync.time / long.time:.0f} times less time")
    remark = f"Clip² with {ROUNDS_FACTOR} times the rounds: {'; '.join(remarks)}"
    return near + fast, all(check.holds for check in fast), remark


# 2 ----------------------------------------------------------------------------------- where delays break SGDClip

HIGH_RATES = ({"lr": 1.0}, {"lr": 3.0})
TRIALS_2 = [
    trial.at(**setting)
    for setting in HIGH_RATES
    for trial in (
        ClaimTrial("SGDClip", "sync"),
        ClaimTrial("SGDClip"),
        ClaimTrial("SGDClip", "server"),
        ClaimTrial("Clip²").at(clip=0.003),
    )
]


def _rule_2(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    checks, part = [], False
    for i, setting in enumerate(HIGH_RATES):
        sync, client, server, clip2 = lines[4 * i : 4 * i + 4]
        low, at = sync.accuracy - 20, f"η = {setting['lr']:g}:"
        here = [
            Check(f"{at} synchronous SGDClip works ({sync})", sync.accuracy >= WORKS),
            Check(f"{at} client-centric is 20 points or more below ({client})", client.accuracy <= low),
            Check(f"{at} server-centric is 20 points or more below ({server})", server.accuracy <= low),
            Check(f"{at} Clip² is at most 10 points below ({clip2})", clip2.accuracy >= sync.accuracy - 10),
        ]
        part |= all(check.holds for check in here) or clip2.accuracy >= client.accuracy + 20
        checks += here
    rates = " and ".join(f"{setting['lr']:g}" for setting in HIGH_RATES)
    shares = " and ".join(f"{100 * line.clipped:.0f} %" for line in lines[3::4])
    return checks, part, f"at η = {rates} Clip² clips {shares} of Δ's coordinates"


# 3 ---------------------------------------------------------------------------------------- SD widens the grid

RATE_PAIRS = ({"lr": 1.0, "local_lr": 0.3}, {"lr": 3.0, "local_lr": 0.1}, {"lr": 3.0, "local_lr": 0.3})
WIDE_GRID = {"lr": (0.1, 0.3, 1.0, 3.0, 10.0), "local_lr": (0.03, 0.1, 0.3, 1.0)}
SGDCLIP_METHODS = ("SGDClip", "SD-SGDClip")
TRIALS_3 = [ClaimTrial(method).at(**place) for place in RATE_PAIRS for method in SGDCLIP_METHODS]
WIDE_TRIALS = tuple(trial for method in SGDCLIP_METHODS for trial in Tuned(ClaimTrial(method), WIDE_GRID).trials())
"""The grid, for both methods."""


def _rule_3(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    plain, downplayed = lines[::2], lines[1::2]
    works = {
        trial: (result.accuracy or 0.0) >= WORKS
        for trial in WIDE_TRIALS
        if (result := result_of(trial.run(scale.seeds[0])))
    }
    share = {name: mean(works[trial] for trial in works if trial.method == name) for name in SGDCLIP_METHODS}
    wider = share["SD-SGDClip"] > share["SGDClip"]
    fails, works_too = (", ".join(map(str, scores)) for scores in (plain, downplayed))
    checks = [
        Check(f"plain SGDClip fails ({fails})", all(line.accuracy < FAILS for line in plain)),
        Check(f"SD-SGDClip works ({works_too})", all(line.accuracy >= WORKS for line in downplayed)),
        Check(f"SD works on more of the grid ({share['SD-SGDClip']:.0%} against {share['SGDClip']:.0%})", wider),
    ]
    rescued = any(a.accuracy < FAILS and b.accuracy >= WORKS for a, b in zip(plain, downplayed, strict=True))
    better = all(b.accuracy >= a.accuracy + 20 for a, b in zip(plain, downplayed, strict=True))
    return checks, rescued or better or wider, ""


# 4 ---------------------------------------------------------------------------------------------------- M = 1

CLIP2_METHODS = ("Clip²", "SD-Clip²", "DC-Clip²")
SETTINGS_AT_M_1 = {**{name: {"lr": 1.0} for name in SGDCLIP_METHODS}, **{name: FIXED[name] for name in CLIP2_METHODS}}
"""Claim 5 has them with larger M too."""
TRIALS_4 = [
    ClaimTrial(name, "server", fleet, 1).at(**SETTINGS_AT_M_1[name]) for fleet in FLEETS for name in SETTINGS_AT_M_1
]
SMALLER_4 = [ClaimTrial("SGDClip", "server", fleet, 1).at(lr=lr) for fleet in FLEETS for lr in (0.1, 0.3)]


def _rule_4(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    main, smaller = lines[: len(TRIALS_4)], _best(lines[len(TRIALS_4) :])
    of = {name: [line for line in main if line.trial.method == name] for name in SETTINGS_AT_M_1}
    collapsed = [
        Check(f"{name} collapses ({', '.join(map(str, of[name]))})", all(line.accuracy <= 20 for line in of[name]))
        for name in SGDCLIP_METHODS
    ]
    held = [
        Check(f"{name} holds ({', '.join(map(str, of[name]))})", all(line.accuracy >= WORKS for line in of[name]))
        for name in CLIP2_METHODS
    ]
    part = collapsed[0].holds or all(check.holds for check in held)
    remark = f"SGDClip with the smaller rate η = {smaller.trial.settings['lr']:g} does not collapse: {smaller}"
    return collapsed + held, part, remark if smaller.accuracy > 20 else ""


# 5 ------------------------------------------------------------------------------------------------- larger M


def _trials_5(scale: Scale, best: list[ClaimTrial]) -> list[ClaimTrial]:
    return [
        ClaimTrial(method, "server", fleet, buffer).at(**SETTINGS_AT_M_1[method])
        for fleet in scale.fleets
        for method in scale.methods
        for buffer in scale.buffers
    ]


def _rule_5(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    many, last = len(scale.buffers), scale.buffers[-1]
    rows = [lines[i : i + many] for i in range(0, len(lines), many)]
    helped, after = [], []
    for row in rows:
        name = f"{row[0].trial.method}, {row[0].trial.stragglers}:"
        better, gain = row[1].accuracy >= row[0].accuracy, row[-1].accuracy - row[1].accuracy
        helped.append(Check(f"{name} M = 10 is at least as good as M = 1 ({row[1]}, {row[0]})", better))
        after.append(Check(f"{name} M = {last} is at most 5 points better than M = 10 ({row[-1]})", gain <= 5))
    grows = all(a.time < b.time for row in rows for a, b in pairwise(row))
    slower = mean(row[-1].time / row[1].time for row in rows)
    time = Check(f"the time grows with M (from M = 10 to {last} {slower:.1f} times)", grows)
    part = grows and sum(check.holds for check in helped) * 2 > len(rows)
    return [*helped, *after, time], part, ""


# 6 -------------------------------------------------------------------------- server-centric and client-centric


def _trials_6(scale: Scale, best: list[ClaimTrial]) -> list[ClaimTrial]:
    modes: tuple[Mode, ...] = ("server", "client")
    return [
        ClaimTrial(name, mode, fleet).at(**FIXED[name]) for fleet in scale.fleets for name in FIXED for mode in modes
    ]


def _rule_6(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    gaps = [abs(server.accuracy - client.accuracy) for server, client in pairs]
    times = [server.time / client.time for server, client in pairs]
    longer = Check(f"SC takes longer ({min(times):.2f} to {max(times):.2f} times)", mean(times) > 1)
    near = Check(
        f"SC and CC are within 3 points ({mean(gaps):.1f} on average, {max(gaps):.1f} at the most)", max(gaps) <= 3
    )
    return [near, longer], mean(gaps) <= 3 and longer.holds, ""


# 7 ------------------------------------------------------------------------------------------------- the relatives

CLIPPED = tuple(f"{name}, clipped" for name in UNCLIPPED)


def _rivals(scale: Scale) -> list[Tuned]:
    return [
        Tuned(ClaimTrial(name, "client", fleet), GRIDS[name.removesuffix(", clipped")])
        for fleet in scale.fleets
        for name in (*CLIP2_METHODS, *UNCLIPPED, *CLIPPED)
    ]


def _rule_7(lines: list[ClaimLine], scale: Scale, result_of: ResultOf) -> RuleOutcome:
    checks, remarks = [], []
    for fleet in scale.fleets:
        of = {line.trial.method: line for line in lines if line.trial.stragglers == fleet}
        rival = _best(of[name] for name in UNCLIPPED)
        for name in CLIP2_METHODS:
            says = f"{fleet}: {name} ({of[name]}) is above {rival.trial.method} ({rival})"
            checks.append(Check(says, of[name].accuracy > rival.accuracy))
        other = min((of[name] for name in UNCLIPPED), key=lambda line: line.accuracy)
        helped = ", ".join(f"{name.removesuffix(', clipped')} {of[name]}" for name in CLIPPED)
        remarks.append(f"{fleet}: {other.trial.method} {other}; with our local clip {helped}")
    return checks, any(check.holds for check in checks), "; ".join(remarks)


CLAIMS = (
    Claim(1, _trials_1, _rule_1, tuned=_tuned_1),
    Claim(2, lambda scale, best: TRIALS_2, _rule_2),
    Claim(3, lambda scale, best: TRIALS_3, _rule_3, once=WIDE_TRIALS),
    Claim(4, lambda scale, best: TRIALS_4 + SMALLER_4, _rule_4),
    Claim(5, _trials_5, _rule_5),
    Claim(6, _trials_6, _rule_6),
    Claim(7, lambda scale, best: best, _rule_7, tuned=_rivals),
)


def main(argv: list[str] | None = None) -> None:
    """Run the experiments of the claims and judge them."""
    from experiments import claims_page

    fast = {"action": "store_true", "help": "fewer seeds, methods and fleets: minutes, not hours"}
    own = {"fast": fast, "out": lib.out("runs/claims")}
    given = lib.options(__doc__, argv, "--page", "--only", "--jobs", "--read", **own)
    lib.check_page(given.page, "claims")
    store, scale = tg.Store(given.out), FAST if given.fast else FULL

    def wanted() -> list[PlannedRun]:
        return [run for claim in CLAIMS for run in claim.wanted(store.result, scale)]

    lib.do_missing(store, wanted, given)
    lib.require_all(store, wanted)
    findings = {claim: claim.judge(store.result, scale) for claim in CLAIMS}
    command = f"python -m experiments.claims{' --fast' * given.fast}"
    lib.publish(
        given.page,
        {"claims": claims_page.text(findings, scale, command)},
        lambda folder: claims_page.draw(folder / "images", findings, store.result, scale),
    )


if __name__ == "__main__":
    lib.run_script(main)
