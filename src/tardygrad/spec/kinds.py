"""The tables of a spec and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from tardygrad.constructors import parameters
from tardygrad.errors import check_integer
from tardygrad.runs.kinds import KINDS as KINDS
from tardygrad.runs.kinds import keys_of as keys_of
from tardygrad.runs.settings import DEFAULTS, NAMES, Settings, check_settings
from tardygrad.runs.track import TrackerName

TABLES = (*KINDS, "run")


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The table [run].

    Args:
        rounds: number of rounds, T; left out: as many as the time allows. A run needs `rounds`, `until` or both.
        until: seconds of the engine's clock, simulated or real, after which the run ends with a last evaluation.
        seed: seed of every random stream except the task's data and split.
        evaluate_every: rounds between evaluations; 0 is never, otherwise the last round is always evaluated.
        checkpoint_every: rounds between checkpoints; in real time (threads, Ray, Flower), half that number.
        evaluate_clients: rounds between evaluations on each client's own data; 0 is never, otherwise the last round is
            always evaluated.
        tail_every: rounds between estimates of the tail of the updates; 0 is never.
        lower_is_better: scores of which a low value is good, if their names do not say it.
        higher_is_better: scores of which a high value is good, if their names say otherwise.
        threads: threads of torch; one is fastest for small models, and another number may change a run's bits.
        track: experiment trackers that get every round.
    """

    rounds: int | None = None
    until: float | None = None
    seed: int = DEFAULTS["seed"]
    evaluate_every: int = DEFAULTS["evaluate_every"]
    checkpoint_every: int = DEFAULTS["checkpoint_every"]
    evaluate_clients: int = DEFAULTS["evaluate_clients"]
    tail_every: int = DEFAULTS["tail_every"]
    lower_is_better: tuple[str, ...] = ()
    higher_is_better: tuple[str, ...] = ()
    threads: int = 1
    track: tuple[TrackerName, ...] = ()

    def __post_init__(self) -> None:
        check_settings(vars(self))
        check_integer("threads", self.threads, most=1024)

    def settings(self) -> Settings:
        """The settings for `tardygrad.begin`."""
        return cast(Settings, {name: getattr(self, name) for name in NAMES})


def suggest_table(key: str, value: str) -> str:
    """A hint for a key that was given without its table; empty if no table has it.

    >>> suggest_table("rounds", "100")
    'Write run.rounds=100.'
    """
    table, _, name = key.rpartition(".")
    tables = [other for other, known in all_keys().items() if name in known and table in ("", other)]
    return f"Write {' or '.join(f'{other}.{name}={value}' for other in tables)}." if tables else ""


def all_keys() -> dict[str, list[str]]:
    """Every key of every table, whatever its kind."""
    known = {"run": list(parameters(RunTable))}
    for table, kinds in KINDS.items():
        known[table] = list(dict.fromkeys(key for make in kinds.values() for key in keys_of(table, make)))
    return known
