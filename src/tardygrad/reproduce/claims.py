"""The paper's seven claims, each as an experiment whose runs and whose rule for a verdict stand before its result.

Settings that are not tuned come from a pilot on the seed for tuning, which no verdict looks at. A verdict is
`reproduced`; `differs`, if only a part of the claim holds; or `not reproduced`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

from tardygrad.core.method import Mode
from tardygrad.fleet import Stragglers
from tardygrad.reproduce.trials import ROUNDS, TUNING, Look, Trial, Tuned

Word = Literal["reproduced", "differs", "not reproduced"]

_CLIPS = {"lr": (0.3, 1.0, 3.0, 10.0), "clip": (0.001, 0.003, 0.01)}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "SGDClip": {"lr": (0.1, 0.3, 1.0, 3.0), "local_lr": (0.1, 0.3, 1.0)},
    "Clip²": _CLIPS,
    "SD-Clip²": _CLIPS,
    "DC-Clip²": _CLIPS,
    "FADAS": {"lr": (0.003, 0.01, 0.03, 0.1), "tau_c": (1.0, 10.0, 100.0)},
    "DN+DyLU": {"lr": (0.03, 0.1, 0.3), "period": (8, 16, 32, 64)},
}
"""Twelve trials for each method that is tuned. Those of FADAS and DN+DyLU lie around what was best in the pilot."""

FIXED: dict[str, dict[str, float]] = {
    "SGDClip": {"lr": 0.3},
    "SD-SGDClip": {"lr": 1.0},
    "Clip²": {"lr": 1.0, "clip": 0.003},
    "SD-Clip²": {"lr": 3.0, "clip": 0.001},
    "DC-Clip²": {"lr": 1.0, "clip": 0.003},
}
"""Settings at which each method works with M = 4 on the large fleet, from the pilot."""

WORKS, FAILS = 80.0, 50.0
"""Accuracies in per cent: what is at or above the first works, what is below the second fails."""

FLEETS: tuple[Stragglers, ...] = ("mild", "large")


class Scale(NamedTuple):
    """How much is run."""

    seeds: range
    fleets: tuple[Stragglers, ...]  # of claims 5, 6 and 7; the others have both, or the large one alone
    methods: tuple[str, ...]  # of claim 5
    buffers: tuple[int, ...]  # M of claim 5


FAST = Scale(range(1, 4), ("large",), ("SGDClip", "Clip²"), (1, 10, 20))
FULL = Scale(range(1, 11), FLEETS, tuple(FIXED), (1, 10, 20, 30))


class ClaimLine(NamedTuple):
    """A trial over its seeds: a line of a claim's table."""

    trial: Trial
    accuracy: float  # in per cent, mean; a run that did not end counts as 0
    spread: float  # standard deviation
    time: float  # simulated seconds, mean
    clipped: float  # share of Δ_t's coordinates, mean
    note: str = ""


class Check(NamedTuple):
    """A part of a rule, with the number it was held against."""

    says: str
    holds: bool


class Finding(NamedTuple):
    """What came of a claim."""

    word: Word
    checks: list[Check]
    lines: list[ClaimLine]
    beside: str = ""  # what is no part of the rule

    def plain(self) -> dict[str, Any]:
        """The same as JSON."""
        checks = [check._asdict() for check in self.checks]
        lines = [
            {**asdict(one.trial), "given": one.trial.settings, **one._asdict(), "trial": one.trial.label}
            for one in self.lines
        ]
        return {"verdict": self.word, "checks": checks, "beside": self.beside, "lines": lines}


class Claim(NamedTuple):
    """A claim: what is run for it, and how it is judged; `texts` says the same in words."""

    number: int
    trials: Callable[[Look, Scale], list[Trial]]  # run with every seed; those of a tuned method once it is tuned
    judge: Callable[[Look, Scale], Finding]
    tuned: Callable[[Scale], list[Tuned]] = lambda scale: []
    once: Callable[[Scale], list[Trial]] = lambda scale: []  # run with the first seed alone

    def needs(self, look: Look, scale: Scale) -> list[tuple[Trial, int]]:
        """The runs, as far as they are known; when all of them are there, there may be more."""
        trials = [(trial, TUNING) for tuned in self.tuned(scale) for trial in tuned.trials()]
        each = [(trial, seed) for trial in self.trials(look, scale) for seed in scale.seeds]
        return [*trials, *each, *((trial, scale.seeds[0]) for trial in self.once(scale))]


def line(look: Look, trial: Trial, scale: Scale, note: str = "") -> ClaimLine:
    """A trial over the seeds; all its runs must be there."""
    rows = [row for seed in scale.seeds if (row := look(trial, seed))]
    scores = [row.accuracy or 0.0 for row in rows]
    spread = stdev(scores) if len(scores) > 1 else 0.0
    return ClaimLine(trial, mean(scores), spread, mean(r.time for r in rows), mean(r.clipped for r in rows), note)


def chosen(look: Look, tuned: list[Tuned]) -> list[Trial]:
    """The best of each that is tuned."""
    return [best for one in tuned if (best := one.best(look))]


def _edges(look: Look, tuned: list[Tuned]) -> dict[Trial, str]:
    """The best of each, and whether better settings may lie beyond its grid."""
    return {
        best: f"at the grid's edge: {', '.join(edges)}" if (edges := one.edges(best)) else ""
        for one in tuned
        if (best := one.best(look))
    }


def _judged(checks: list[Check], part: bool, lines: list[ClaimLine], beside: str = "") -> Finding:
    """Reproduced if every check holds; else it differs, if a part of it does."""
    whole = all(check.holds for check in checks)
    return Finding("reproduced" if whole else "differs" if part else "not reproduced", checks, lines, beside)


def _best(lines: Iterable[ClaimLine]) -> ClaimLine:
    return max(lines, key=lambda one: one.accuracy)


def _score(one: ClaimLine) -> str:
    return f"{one.accuracy:.1f} ± {one.spread:.1f}"


# 1 ------------------------------------------------------------------------------------------------ not waiting

FASTER = {"mild": 20, "large": 75}  # the paper's
LONGER = 4


def _waiting(scale: Scale) -> list[Tuned]:
    """Who straggles changes only the clock of a synchronous run, so it is tuned once."""
    sync = [Tuned(Trial(method, "sync"), GRIDS[method]) for method in ("SGDClip", "Clip²")]
    return sync + [Tuned(Trial(one.trial.method, "client", fleet), one.grid) for fleet in FLEETS for one in sync]


def _trials_1(look: Look, scale: Scale) -> list[Trial]:
    trials = chosen(look, _waiting(scale))
    mild = [trial.on("mild") for trial in trials if trial.mode == "sync"]
    longer = [trial.lasting(LONGER * ROUNDS) for trial in trials if trial.mode == "client" and trial.method == "Clip²"]
    return trials + mild + longer


def _judge_1(look: Look, scale: Scale) -> Finding:
    notes = _edges(look, _waiting(scale))
    lines = [
        line(look, trial, scale, notes.get(trial, "" if trial.rounds == ROUNDS else f"{LONGER} times the rounds"))
        for trial in _trials_1(look, scale)
    ]
    near, fast, beside = [], [], []
    for fleet in FLEETS:
        here = [one for one in lines if one.trial.stragglers == fleet]
        short = [one for one in here if one.trial.rounds == ROUNDS]
        sync, client = (_best(one for one in short if one.trial.mode == mode) for mode in ("sync", "client"))
        gap, times = client.accuracy - sync.accuracy, sync.time / client.time
        near.append(Check(f"{fleet}: at most 1 point behind ({_score(client)} against {_score(sync)})", gap >= -1.0))
        fast.append(
            Check(f"{fleet}: at least {FASTER[fleet] / 2:g} times less time ({times:.0f})", times >= FASTER[fleet] / 2)
        )
        long = next(one for one in here if one.trial.rounds != ROUNDS)
        beside.append(f"{fleet} {_score(long)} in {sync.time / long.time:.0f} times less time")
    said = f"Clip² with {LONGER} times the rounds: {'; '.join(beside)}"
    return _judged(near + fast, all(check.holds for check in fast), lines, said)


# 2 ------------------------------------------------------------------------------- where SGDClip cannot stand delays

HARD = ({"lr": 1.0}, {"lr": 3.0})


def _trials_2(look: Look, scale: Scale) -> list[Trial]:
    return [
        trial.at(**setting)
        for setting in HARD
        for trial in (
            Trial("SGDClip", "sync"),
            Trial("SGDClip"),
            Trial("SGDClip", "server"),
            Trial("Clip²").at(clip=0.003),
        )
    ]


def _judge_2(look: Look, scale: Scale) -> Finding:
    lines = [line(look, trial, scale) for trial in _trials_2(look, scale)]
    checks, part = [], False
    for i, setting in enumerate(HARD):
        sync, client, server, clip2 = lines[4 * i : 4 * i + 4]
        low, at = sync.accuracy - 20, f"η = {setting['lr']:g}:"
        here = [
            Check(f"{at} synchronous SGDClip works ({_score(sync)})", sync.accuracy >= WORKS),
            Check(f"{at} client-centric is 20 points or more below ({_score(client)})", client.accuracy <= low),
            Check(f"{at} server-centric is 20 points or more below ({_score(server)})", server.accuracy <= low),
            Check(f"{at} Clip² is at most 10 points below ({_score(clip2)})", clip2.accuracy >= sync.accuracy - 10),
        ]
        part |= all(check.holds for check in here) or clip2.accuracy >= client.accuracy + 20
        checks += here
    shares = ", ".join(f"{one.clipped:.0%}" for one in lines[3::4])
    return _judged(checks, part, lines, f"of Δ's coordinates Clip² clips {shares}")


# 3 ------------------------------------------------------------------------------------------- what SD widens

PLACES = ({"lr": 1.0, "local_lr": 0.3}, {"lr": 3.0, "local_lr": 0.1}, {"lr": 3.0, "local_lr": 0.3})
WIDE = {"lr": (0.1, 0.3, 1.0, 3.0, 10.0), "local_lr": (0.03, 0.1, 0.3, 1.0)}
PAIR = ("SGDClip", "SD-SGDClip")


def _trials_3(look: Look, scale: Scale) -> list[Trial]:
    return [Trial(method).at(**place) for place in PLACES for method in PAIR]


def field(scale: Scale) -> list[Trial]:
    """The grid of claim 3, for either method."""
    return [trial for method in PAIR for trial in Tuned(Trial(method), WIDE).trials()]


def works(look: Look, trial: Trial, seed: int) -> bool:
    """Whether a run ended at or above the accuracy that counts as working."""
    result = look(trial, seed)
    return result is not None and (result.accuracy or 0.0) >= WORKS


def _judge_3(look: Look, scale: Scale) -> Finding:
    lines = [line(look, trial, scale) for trial in _trials_3(look, scale)]
    plain, downplayed = lines[::2], lines[1::2]
    share = {
        method: mean(works(look, trial, scale.seeds[0]) for trial in field(scale) if trial.method == method)
        for method in PAIR
    }
    wider = share["SD-SGDClip"] > share["SGDClip"]
    checks = [
        Check(f"plain SGDClip fails ({', '.join(map(_score, plain))})", all(one.accuracy < FAILS for one in plain)),
        Check(
            f"SD-SGDClip works ({', '.join(map(_score, downplayed))})", all(one.accuracy >= WORKS for one in downplayed)
        ),
        Check(f"SD works on more of the grid ({share['SD-SGDClip']:.0%} against {share['SGDClip']:.0%})", wider),
    ]
    rescued = any(a.accuracy < FAILS and b.accuracy >= WORKS for a, b in zip(plain, downplayed, strict=True))
    better = all(b.accuracy >= a.accuracy + 20 for a, b in zip(plain, downplayed, strict=True))
    return _judged(checks, rescued or better or wider, lines)


# 4 ---------------------------------------------------------------------------------------------------- M = 1

OURS = ("Clip²", "SD-Clip²", "DC-Clip²")
ALONE = {**{name: {"lr": 1.0} for name in PAIR}, **{name: FIXED[name] for name in OURS}}
SMALLER = (0.1, 0.3)


def _trials_4(look: Look, scale: Scale) -> list[Trial]:
    alone = [Trial(name, "server", fleet, 1).at(**ALONE[name]) for fleet in FLEETS for name in ALONE]
    return alone + [Trial("SGDClip", "server", fleet, 1).at(lr=lr) for fleet in FLEETS for lr in SMALLER]


def _judge_4(look: Look, scale: Scale) -> Finding:
    lines = [line(look, trial, scale) for trial in _trials_4(look, scale)]
    main, smaller = lines[: len(FLEETS) * len(ALONE)], _best(lines[len(FLEETS) * len(ALONE) :])
    of = {name: [one for one in main if one.trial.method == name] for name in ALONE}
    collapsed = [
        Check(f"{name} collapses ({', '.join(map(_score, of[name]))})", all(one.accuracy <= 20 for one in of[name]))
        for name in PAIR
    ]
    held = [
        Check(f"{name} holds ({', '.join(map(_score, of[name]))})", all(one.accuracy >= WORKS for one in of[name]))
        for name in OURS
    ]
    part = collapsed[0].holds or all(check.holds for check in held)
    said = f"SGDClip with the smaller rate η = {smaller.trial.settings['lr']:g} does not collapse: {_score(smaller)}"
    return _judged(collapsed + held, part, lines, said if smaller.accuracy > 20 else "")


# 5 ------------------------------------------------------------------------------------------------- more of M


def _trials_5(look: Look, scale: Scale) -> list[Trial]:
    return [
        Trial(method, "server", fleet, buffer).at(**ALONE[method])
        for fleet in scale.fleets
        for method in scale.methods
        for buffer in scale.buffers
    ]


def _judge_5(look: Look, scale: Scale) -> Finding:
    lines = [line(look, trial, scale) for trial in _trials_5(look, scale)]
    many, last = len(scale.buffers), scale.buffers[-1]
    rows = [lines[i : i + many] for i in range(0, len(lines), many)]
    helped, after = [], []
    for row in rows:
        name = f"{row[0].trial.method}, {row[0].trial.stragglers}:"
        better, gain = row[1].accuracy >= row[0].accuracy, row[-1].accuracy - row[1].accuracy
        helped.append(Check(f"{name} M = 10 is at least as good as M = 1 ({_score(row[1])}, {_score(row[0])})", better))
        after.append(Check(f"{name} M = {last} is at most 5 points better than M = 10 ({_score(row[-1])})", gain <= 5))
    grows = all(a.time < b.time for row in rows for a, b in pairwise(row))
    slower = mean(row[-1].time / row[1].time for row in rows)
    time = Check(f"the time grows with M (from M = 10 to {last} {slower:.1f} times)", grows)
    part = grows and sum(check.holds for check in helped) * 2 > len(rows)
    return _judged([*helped, *after, time], part, lines)


# 6 --------------------------------------------------------------------------------------- who asks for the model


def _trials_6(look: Look, scale: Scale) -> list[Trial]:
    modes: tuple[Mode, ...] = ("server", "client")
    return [Trial(name, mode, fleet).at(**FIXED[name]) for fleet in scale.fleets for name in FIXED for mode in modes]


def _judge_6(look: Look, scale: Scale) -> Finding:
    lines = [line(look, trial, scale) for trial in _trials_6(look, scale)]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    gaps = [abs(server.accuracy - client.accuracy) for server, client in pairs]
    times = [server.time / client.time for server, client in pairs]
    longer = Check(f"SC takes longer ({min(times):.2f} to {max(times):.2f} times)", mean(times) > 1)
    near = Check(
        f"SC and CC are within 3 points ({mean(gaps):.1f} on average, {max(gaps):.1f} at the most)", max(gaps) <= 3
    )
    return _judged([near, longer], mean(gaps) <= 3 and longer.holds, lines)


# 7 ------------------------------------------------------------------------------------------------- the relatives

THEIRS, HELPED = ("FADAS", "DN+DyLU"), ("FADAS, clipped", "DN+DyLU, clipped")


def _rivals(scale: Scale) -> list[Tuned]:
    return [
        Tuned(Trial(name, "client", fleet), GRIDS[name.removesuffix(", clipped")])
        for fleet in scale.fleets
        for name in (*OURS, *THEIRS, *HELPED)
    ]


def _trials_7(look: Look, scale: Scale) -> list[Trial]:
    return chosen(look, _rivals(scale))


def _judge_7(look: Look, scale: Scale) -> Finding:
    notes = _edges(look, _rivals(scale))
    lines = [line(look, trial, scale, notes[trial]) for trial in _trials_7(look, scale)]
    checks, beside = [], []
    for fleet in scale.fleets:
        of = {one.trial.method: one for one in lines if one.trial.stragglers == fleet}
        rival = _best(of[name] for name in THEIRS)
        for name in OURS:
            says = f"{fleet}: {name} ({_score(of[name])}) is above {rival.trial.method} ({_score(rival)})"
            checks.append(Check(says, of[name].accuracy > rival.accuracy))
        other = min((of[name] for name in THEIRS), key=lambda one: one.accuracy)
        helped = ", ".join(f"{name.removesuffix(', clipped')} {_score(of[name])}" for name in HELPED)
        beside.append(f"{fleet}: {other.trial.method} {_score(other)}; with our local clip {helped}")
    return _judged(checks, any(check.holds for check in checks), lines, "; ".join(beside))


CLAIMS = (
    Claim(1, _trials_1, _judge_1, tuned=_waiting),
    Claim(2, _trials_2, _judge_2),
    Claim(3, _trials_3, _judge_3, once=field),
    Claim(4, _trials_4, _judge_4),
    Claim(5, _trials_5, _judge_5),
    Claim(6, _trials_6, _judge_6),
    Claim(7, _trials_7, _judge_7, tuned=_rivals),
)


@cache
def texts() -> dict[str, dict[str, str]]:
    """What the paper says, what is run, and what makes it true, by the claim's number."""
    return tomllib.loads(files("tardygrad.reproduce").joinpath("claims.toml").read_text(encoding="utf-8"))
