"""The settings of a run: its length, and what is evaluated and recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from tardygrad.errors import COUNTABLE, Invalid, check_integer, check_number
from tardygrad.runs.directions import Directions

MINIMUM = {"rounds": 1, "seed": 0, "evaluate_every": 0, "checkpoint_every": 1, "tail_every": 0, "evaluate_clients": 0}
"""The smallest allowed value of each integer setting."""

NAMES = (*MINIMUM, "until", "lower_is_better", "higher_is_better")
"""The settings that a record holds."""


class Settings(TypedDict, total=False):
    """The settings of a run: keyword arguments of `simulate`, `train` and `begin`.

    Args:
        rounds: number of rounds, T; None is no limit. A run needs `rounds`, `until` or both.
        until: seconds of the engine's clock after which the run ends; None is no limit.
        seed: of every random stream except the task's data and split; 0 by default.
        evaluate_every: rounds between evaluations, 10 by default; 0 is never, else the last round always is evaluated.
        out: a directory for the record; None keeps the metrics in memory only.
        checkpoint_every: rounds between checkpoints, 10 by default; on a real clock, half that number.
        tail_every: rounds between estimates of the updates' tail index; 0, the default, is never.
        evaluate_clients: rounds between evaluations on each client's own data; 0, the default, is never, else the last
            round always is evaluated.
        lower_is_better: scores of which a low value is good, if their names do not say it.
        higher_is_better: scores of which a high value is good, if their names say otherwise.
    """

    rounds: int | None
    until: float | None
    seed: int
    evaluate_every: int
    out: str | Path | None
    checkpoint_every: int
    tail_every: int
    evaluate_clients: int
    lower_is_better: Sequence[str]
    higher_is_better: Sequence[str]


TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The table [run] of a spec: the settings of a run, but `out`, and what only a command needs.

    Args:
        threads: threads of torch; one is fastest for small models, and another number may change a run's bits.
        track: experiment trackers that get every round.
    """

    rounds: int | None = None
    until: float | None = None
    seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    evaluate_clients: int = 0
    tail_every: int = 0
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


def with_defaults(settings: Settings) -> Settings:
    """Add the defaults to the settings of a run; raise `Invalid` if one is wrong or missing."""
    given: dict[str, Any] = {**settings}
    out = given.pop("out", None)
    for name in Directions._fields:
        given[name] = (given[name],) if isinstance(given.get(name), str) else tuple(given.get(name, ()))
    full = RunTable(**given).settings()
    if out == "":
        raise Invalid("`out` must be a directory, got ''. Use out='.' for the current one, or leave it out.")
    if "out" in settings:
        full["out"] = None if out is None else Path(out).absolute()  # own code may change the current directory
    return full


def check_settings(settings: dict[str, Any]) -> None:
    """Raise `Invalid` if a setting is wrong, or if the run would have no end."""
    if settings["rounds"] is None and settings["until"] is None:
        raise Invalid(
            "a run needs `rounds`, how many times the server updates the model, or `until`, after how many seconds it "
            "ends. Use rounds=100, for example."
        )
    for name, least in MINIMUM.items():
        if name != "rounds" or settings[name] is not None:
            check_integer(name, settings[name], least, math.inf if name == "seed" else COUNTABLE)
    if settings["until"] is not None:
        check_number("until", settings["until"], above=True)
    for name in ("lower_is_better", "higher_is_better"):
        if wrong := [score for score in settings[name] if not isinstance(score, str)]:
            raise Invalid(f"`{name}` must be names of scores, got {wrong[0]!r}.")
    if both := set(settings["lower_is_better"]) & set(settings["higher_is_better"]):
        raise Invalid(f"a score is better when lower or when higher, got {min(both)!r} in both lists.")


def change_run(spec_json: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change settings of the run wherever spec.json has them."""
    for tables in (spec_json, spec_json.get("spec"), spec_json.get("described")):
        if tables:
            tables["run"] |= changes
