"""What came of a run."""

from __future__ import annotations

from typing import NamedTuple


class Summary(NamedTuple):
    """What came of a run."""

    method: str
    status: str  # finished, stopped, starved, diverged, ...
    reason: str | None  # why it starved or diverged
    rounds: int
    time: float  # seconds of the engine's clock
    score_round: int | None  # the last round that was evaluated: loss and accuracy are its own
    loss: float | None  # on the test set
    accuracy: float | None
    best_accuracy: float | None
    scores: dict[str, float | None]  # whatever else the task measured, such as f1 or pearson
    delay_mean: float
    delay_max: int
    updates: int
    refused: dict[str, int]
    lost: int
    local_steps: int
    snapshots: int  # most past models held at once
    seconds: float  # real ones

    def __str__(self) -> str:
        lines = [self.method, f"{self.status} after {plural(self.rounds, 'round')}, {self.time:g} s on the clock"]
        lines += [self.reason] if self.reason else []
        loss = "not finite" if self.loss is None else f"{self.loss:.4g}"
        accuracy = "" if self.accuracy is None else f"test accuracy {self.accuracy:.1%}, "
        if accuracy or self.loss is not None:
            when = "" if self.score_round == self.rounds else f" (of round {self.score_round})"
            others = "".join(
                f", {name.replace('_', ' ')} {'not finite' if value is None else f'{value:.4g}'}"
                for name, value in self.scores.items()
            )
            lines.append(f"{accuracy}test loss {loss}{others}{when}")
        arrived = f"{plural(self.updates, 'update')}, {self.lost} lost"
        lines.append(f"delay mean {self.delay_mean:.1f}, largest {self.delay_max}; {arrived}")
        lines += [f"refused {number}: {reason}" for reason, number in self.refused.items()]
        return "\n".join(lines)


def plural(number: int, what: str) -> str:
    """So many of a thing.

    >>> plural(1, "round"), plural(140, "round")
    ('1 round', '140 rounds')
    """
    return f"{number} {what}{'s' * (number != 1)}"
