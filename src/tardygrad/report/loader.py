"""A run as a report shows it: lists that are short enough to draw."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tardygrad.report.downsample import ClientBars, Sample, client_bars, sample
from tardygrad.report.settings import flat, toml
from tardygrad.runs.accountant import guarantee
from tardygrad.runs.history import History, read_history
from tardygrad.runs.record import Row, reading_record
from tardygrad.runs.record_values import printable
from tardygrad.tail.estimate import MIN_SAMPLES
from tardygrad.tail.hill import hill, survival

POINTS = 400  # most points of a curve
CLIENTS, BARS, CLASSES = 64, 3000, 8  # most clients and bars of a timeline, most classes of a fleet
EVEN = 1000  # a larger tail index means that the norms are almost equal: there is no tail
SMALLEST, LARGEST = 1e-300, 1e150  # numbers that can be drawn and squared


class NormTail(NamedTuple):
    """Hill's estimate: P(‖δ‖ > r) falls like r to the power −tail."""

    tail: float
    error: float  # standard, tail / √number
    number: int  # of norms used
    edge: float  # where the tail begins
    share: float  # of the norms beyond the edge
    points: list[tuple[float, float]]  # r, and the share of norms beyond it


class ClassTotals(NamedTuple):
    """What the clients of a class did, in total."""

    clients: int
    working: float  # seconds
    asleep: float  # seconds
    lost: float  # seconds
    losses: int
    refused: Counter[str]  # updates, by reason
    used: NDArray[np.bool_]  # which of the rounds' updates are theirs, T × M
    delays: NDArray[np.int64]  # of these
    weight: float  # of these; NaN: not recorded


@dataclass(frozen=True)
class RunView:
    """What a report shows of a run."""

    history: History
    settings: dict[str, str]  # every key of the spec, or what is known of it
    toml: str  # the same

    @property
    def seed(self) -> int | None:
        """The run's seed, if its record says."""
        seed = self.history.run.get("seed")
        return seed if isinstance(seed, int) else None

    @cached_property
    def class_of(self) -> list[str]:
        """The class of each client, with a short name; the last of very many classes are merged."""
        shown = [printable(name, 40) for name in self.history.classes]
        names = list(dict.fromkeys(shown))
        merged = names[CLASSES - 1 :] if len(names) > CLASSES else []
        return ["all others" if name in merged else name for name in shown]

    @cached_property
    def classes(self) -> dict[str, ClassTotals]:
        """What each class did, in the order of the fleet."""
        rounds, found = self.history.rounds, dict[str, ClassTotals]()
        for name in dict.fromkeys(self.class_of):
            members = [client for client, own in enumerate(self.class_of) if own == name]
            clients = [self.history.by_client[client] for client in members]
            used = np.isin(rounds.clients, members)
            found[name] = ClassTotals(
                clients=len(clients),
                working=sum(client.working_seconds for client in clients),
                asleep=sum(client.asleep_seconds for client in clients),
                lost=sum(client.lost_seconds for client in clients),
                losses=sum(client.losses for client in clients),
                refused=sum((client.refused for client in clients), Counter()),
                used=used,
                delays=rounds.delays[used],
                weight=float(rounds.weights[used].sum()),
            )
        return found

    @cached_property
    def rounds(self) -> Sample[Row]:
        """Round, time, seconds, steps so far, loss, clipped, local_clipped, epsilon and snapshots."""
        rounds = self.history.rounds
        numbers, step = sample(range(1, len(rounds) + 1), POINTS)
        rows, names = [], ("loss", "clipped", "local_clipped", "epsilon")
        for number in numbers:
            facts = {name: finite(getattr(rounds, name)[number - 1]) for name in names}
            rows.append({**self._moment(number), **facts, "snapshots": int(rounds.snapshots[number - 1])})
        return Sample(rows, step)

    @cached_property
    def scores(self) -> Sample[Row]:
        """Round, time, seconds, steps so far, and the scores by name under `scores`."""
        evaluations, step = sample(self.history.evaluations, POINTS)
        rows = []
        for evaluation in evaluations:
            scores = {printable(name, 40): finite(value) for name, value in evaluation.scores.items()}
            rows.append({**self._moment(evaluation.round), "scores": scores})
        return Sample(rows, step)

    @cached_property
    def privacy(self) -> str | None:
        """The guarantee of a private run so far; None: it is not private."""
        settings, epsilons = self.history.setting("privacy"), self.history.rounds.epsilon
        if not isinstance(settings, dict) and not np.isfinite(epsilons).any():
            return None
        delta = finite(settings.get("delta")) if isinstance(settings, dict) else None  # else the record has no spec
        return guarantee(finite(epsilons[-1]) if len(epsilons) else 0.0, delta)

    def _moment(self, number: int) -> Row:
        """The end of a round."""
        rounds, at = self.history.rounds, number - 1
        moment = {"round": number, "time": finite(rounds.time[at]), "seconds": finite(rounds.seconds[at])}
        return moment | {"steps": int(self._steps[at])}

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return self.history.rounds.steps.cumsum()

    @cached_property
    def bars(self) -> ClientBars:
        """When clients worked, were asleep and were lost."""
        return client_bars(self.history.by_client, self.history.time, most=CLIENTS, limit=BARS)

    @cached_property
    def tail(self) -> NormTail | None:
        """The tail of the updates' norms."""
        norms = self.history.rounds.norms
        return tail_of(norms[norms > 0])


def read(path: Path) -> RunView:
    """Load a run's record."""
    history = read_history(path)
    with reading_record(path):
        tables = history.spec or history.described or {"run": history.run}
        return RunView(history, dict(flat(tables)), toml(tables))


def finite(value: Any) -> float | None:
    """A number of a record, to six digits and within the range that can be drawn; None if it is not a finite number.

    >>> finite(1 / 3), finite(-1e308), finite(5e-324), finite(math.nan)
    (0.333333, -1e+150, 0.0, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        return None
    return float(f"{max(-LARGEST, min(value, LARGEST)):.6g}") if abs(value) >= SMALLEST else 0.0


def tail_of(norms: NDArray[np.float64]) -> NormTail | None:
    """Hill's estimate of the norms' tail; None if they are too few or almost equal.

    >>> round(tail_of((1 - (np.arange(10_000) + 0.5) / 10_000) ** (-1 / 1.5)).tail, 2)
    1.5
    """
    if len(norms) < MIN_SAMPLES:
        return None
    found, number = hill(norms), len(norms)
    edge = float(np.partition(norms, number - found.k - 1)[number - found.k - 1])
    if found.index > EVEN or norms.max() > edge * LARGEST:
        return None
    points = [(float(f"{size:.6g}"), share) for size, share in survival(norms, 100)]
    return NormTail(found.index, found.index / math.sqrt(found.k), found.k, edge, found.k / number, points)
