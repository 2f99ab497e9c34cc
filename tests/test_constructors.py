"""Constructions: a call is checked, remembered with the object, and written as a table that makes it again."""

from __future__ import annotations

import copy
import inspect
import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.constructors import Call, call_of, call_seeded, conform, constructor, described, parameters, written
from tardygrad.core.schedules import Schedule
from tardygrad.fleet import AvailabilityFile, Available, Crash, Diurnal, Fault, Slow, SlowSpells
from tardygrad.methods.shared import MethodSettings
from tardygrad.runs.kinds import KINDS
from tests.test_fleet import fleet_of

TWO = fleet_of(1.0, 2.0)
DATA = (torch.zeros(4, 2), torch.arange(4))
GOOD: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (tg.Uniform, {"low": 1.0, "high": 2.0}),
    (tg.Integer, {"low": 1, "high": 2}),
    (tg.LogNormal, {"median": 1.0, "sigma": 0.5}),
    (tg.Exponential, {"mean": 1.0}),
    (tg.Pareto, {"minimum": 1.0, "tail": 1.5}),
    (tg.Trace, {"seconds": (1.0,), "resample": True}),
    (tg.Link, {"latency": 1.0, "down": 1.0, "up": 1.0, "sigma": 0.5}),
    (tg.Group, {"name": "a", "clients": 2, "runtime": tg.Uniform(1, 2), "link": tg.Link(), "dropout": 0.1}),
    (tg.Fleet, {"groups": TWO.groups, "server_time": 1.0, "crashes": (), "slow": (), "available": (), "faults": (),
                "at_window_end": "cancel", "dropout": 0.1, "slow_spells": (), "ids": ("a", "b")}),
    (tg.Fleet.paper, {"clients": 4, "stragglers": "mild", "continuous": True}),
    (partial(Crash, 0), {"at": 1.0, "back": 2.0}),
    (partial(Slow, 0), {"at": 1.0, "until": 2.0, "factor": 2.0}),
    (SlowSpells, {"group": "a", "every": 1.0, "lasts": 1.0, "factor": 2.0}),
    (Diurnal, {"period": 9.0, "awake": 0.5, "spread": 0.5, "group": "a"}),
    (partial(Available, 0), {"windows": ((0.0, 1.0),), "period": 2.0}),
    (partial(Fault, 0), {"job": 1, "sends": "nan"}),
    (AvailabilityFile, {"path": "x.csv", "client": "a", "start": "b", "end": "c", "period": 1.0}),
    (partial(TWO.crash, client=0), {"at": 1.0, "back": 2.0}),
    (partial(TWO.slowed, client=0), {"at": 1.0, "until": 2.0, "factor": 2.0}),
    (TWO.diurnal, {"period": 9.0, "awake": 0.5, "spread": 0.5, "group": "c0"}),
    (TWO.dropping, {"dropout": 0.1}),
    (partial(TWO.during, client=0), {"windows": ((0.0, 1.0),), "period": 2.0}),
    (partial(TWO.faulty, client=0), {"job": 1, "sends": "nan"}),
    (TWO.linked, {"link": tg.Link()}),
    (tg.Power, {"value": 0.1, "exponent": -0.5}),
    (tg.Cosine, {"peak": 1.0, "rounds": 9, "warmup": 1, "floor": 0.1}),
    (tg.Polynomial, {"exponent": 0.5, "fresh": 1, "average": 0.5}),
    (tg.Hinge, {"slope": 1.0, "bound": 1.0, "jump": True, "fresh": 1}),
    (tg.Threshold, {"bound": 1.0, "fresh": 1}),
    (tg.Root, {"fresh": 1}),
    (tg.Noise, {"kind": "student", "tail": 1.5, "scale": 1.0}),
    (tg.tasks.quadratic, {"clients": 2, "dimension": 3, "condition": 2.0, "heterogeneity": 0.1, "noise": tg.Noise()}),
    (tg.tasks.logistic, {"clients": 2, "dimension": 3, "samples": 4}),
    (tg.tasks.clock, {"clients": 2, "parameters": 3}),
    (partial(tg.shard, DATA), {"clients": 2, "how": "dirichlet", "concentration": 0.5, "balanced": True, "seed": 1}),
]  # fmt: skip
WRONG: dict[type, list[Any]] = {
    bool: [1, "true"],
    int: ["1", 1.5, True, [1], object()],
    float: ["1", True, [1.0], 10**400, object()],
    str: [3, ["a"], object()],
    tuple: [3, "x", ("x",), [object()], np.array("x")],
}


def test_an_argument_of_another_type_is_refused_and_named() -> None:
    for make, good in GOOD:
        make(**good)
        for name, value in good.items():
            for wrong in WRONG.get(type(value), [3, "x", (), type(value)]):
                with pytest.raises(tg.Invalid, match=rf"^`{name}(\[\d+\])?` must be .+, got "):
                    make(**good | {name: wrong})
            with pytest.raises(tg.Invalid, match="has no argument"):
                make(**good, **{f"{name}_": value})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (tg.Trace([1, 2.5]), tg.Trace((1, 2.5))),
        (Available(0, [[0, 1], (2, np.float32(3))]), Available(0, ((0, 1), (2, 3.0)))),
        (tg.Fleet([tg.Group("a", 1, tg.Uniform(1, np.int64(2)))]), tg.Fleet((tg.Group("a", 1, tg.Uniform(1, 2)),))),
        (TWO.during([[0, 1]], client=0), TWO.during(((0, 1),), client=0)),  # type: ignore[list-item]
    ],
)
def test_lists_are_taken_for_tuples_and_numbers_of_numpy_for_numbers(given: object, expected: object) -> None:
    assert given == expected
    assert hash(given) == hash(expected)


def test_functions_of_ones_own_are_weights_and_runtimes_but_classes_are_not() -> None:
    method: dict[str, Any] = {"local_lr": 0.1, "buffer": 2, "local_steps": 1}
    assert tg.fedbuff(**method, weight=lambda delay: 1 / delay).weight(2) == 0.5  # type: ignore[misc]
    with pytest.raises(tg.Invalid, match="`weight` must be one of Polynomial"):
        tg.fedbuff(**method, weight=tg.Hinge)
    with pytest.raises(
        tg.Invalid, match=r"`runtime` must be one of Uniform.*, Runtime, got <class .* Use Uniform\(\.\.\.\)"
    ):
        tg.Group("a", 1, tg.Uniform)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (float, True, "`a.b` must be a number, got true."),
        (list[float], ["x"], "`a.b[0]` must be a number, got 'x'."),
        (dict[str, int], {"k": "x"}, "`a.b['k']` must be a whole number, got 'x'."),
        (tuple[int, ...], [1, "x"], "`a.b[1]` must be a whole number, got 'x'."),
        (tuple[float, float], [1.0], "`a.b` must be a pair, got [1.0]."),
        (Annotated[int, "a note"], "x", "`a.b` must be a whole number, got 'x'."),
    ],
)
def test_a_spec_has_the_same_rules(hint: Any, value: Any, text: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        conform(hint, value, "a.b", spec=True)
    assert str(caught.value) == text
    assert type(conform(float, 4, "a.b", spec=True)) is float


METHODS: dict[str, Any] = KINDS["method"]
CLIP2: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 1.0, "buffer": 4, "local_steps": 2}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tg.clip2(bufer=4), "clip2 has no argument `bufer`. Did you mean 'buffer'?"),
        (lambda: tg.clip2(**CLIP2, momentum=0.9), "clip2 has no argument `momentum`. Its arguments are local_lr, "),
        (lambda: tg.clip2(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=4), "clip2 needs `clip`."),
        (lambda: tg.clip2(0.1), "clip2 takes its settings by name, such as local_lr=..., got 0.1."),
        (lambda: tg.make(3), "`make` needs a function and its arguments, got 3. Use make(function, key=value)."),
        (lambda: tg.make(namedtuple("Point", "x"), x=1), "`make` needs a function that returns a task, a method"),
        (lambda: tg.make(own, x=endless()), "an argument must not contain itself, or be nested so deeply that Python"),
        (lambda: tg.Trace((10**5000,)), "`seconds[0]` must be a number, got a number that is too long to write."),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_in_a_sentence(call: Any, text: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        call()
    assert str(caught.value).startswith(text)


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def test_the_help_of_a_constructor_describes_every_setting_once() -> None:
    for kind, make in {**METHODS, **KINDS["task"]}.items():
        known = parameters(make)
        assert list(inspect.signature(make).parameters) == list(known), kind
        if kind != "quadratic":
            assert described(make).keys() == known.keys(), kind
            assert all((make.__doc__ or "").count(f"\n    {name}: ") == 1 for name in known), kind
        if kind in METHODS:
            assert MethodSettings.__annotations__.keys() | {"buffer", "mode", "local_lr"} <= known.keys(), kind


def test_a_constructor_remembers_its_call() -> None:
    assert call_of(tg.clip2(**CLIP2)) == Call(tg.clip2, CLIP2)
    assert call_of(tg.tasks.quadratic(clients=3)) == Call(tg.tasks.quadratic, {"clients": 3})
    assert call_of(tg.Fleet.paper(clients=3)) == Call(tg.Fleet.paper, {"clients": 3})
    method, task, fleet = tg.clip2(**CLIP2), tg.tasks.quadratic(clients=3), tg.Fleet.paper(clients=3)
    with tg.SimPool(task, method, fleet, batch=1) as pool:
        assert call_of(pool) == Call(tg.SimPool, {"task": task, "method": method, "fleet": fleet, "batch": 1})


def test_a_call_does_not_change_with_the_arguments() -> None:
    def mine(slopes: list[float], names: dict[str, list[str]], x: torch.Tensor) -> tg.Method:
        slopes.append(9.0)
        return tg.clip2(**CLIP2)

    slopes, names, x = [1.0], {"a": ["b"]}, torch.ones(2)
    made_by = call_of(tg.make(mine, slopes=slopes, names=names, x=x))
    assert made_by is not None
    names["a"].append("c")
    for _ in range(2):
        assert (made_by.arguments["slopes"], made_by.arguments["names"]) == ([1.0], {"a": ["b"]})
        call_seeded(made_by.function, made_by.arguments)
    assert made_by.arguments["x"] is x
    probabilities = [0.5, 0.5]
    given = {"place": {0: probabilities}}
    made = constructed(given)
    probabilities[0] = given["place"][1] = 0.1  # type: ignore[call-overload]
    assert call_of(made) == Call(constructed, {"given": {"place": {0: [0.5, 0.5]}}})


def test_copies_have_the_call_and_changed_objects_have_none() -> None:
    method, fleet = tg.clip2(**CLIP2), tg.Fleet.paper(clients=3)
    assert call_of(copy.deepcopy(fleet)) == call_of(fleet)
    assert call_of(replace(method, buffer=3)) is None
    assert call_of(fleet.crash(client=0, at=1.0)) is None
    assert call_of(tg.tasks.logistic(clients=2).to("cpu")) is None


def test_make_remembers_the_outermost_function_and_the_one_that_it_called() -> None:
    def mine(clients: int) -> object:
        return tg.tasks.quadratic(clients=clients)

    inner = Call(tg.tasks.quadratic, {"clients": 3})
    assert call_of(tg.make(mine, clients=3)) == Call(mine, {"clients": 3}, inner=inner)


def test_a_function_is_named_only_if_it_can_be_imported() -> None:
    assert Call(own, {}).name == f"{__name__}:own"
    assert Call(tg.Fleet.paper, {}).name == "tardygrad.fleet.fleet:Fleet.paper"
    with pytest.raises(tg.Invalid, match=r"its function `.*<lambda>` is not one that can be imported"):
        _ = Call(lambda: None, {}).name
    script = lambda: None  # noqa: E731
    script.__module__ = "__main__"
    with pytest.raises(tg.Invalid, match="is in the script itself, which cannot be imported"):
        _ = Call(script, {}).name


def test_values_that_json_cannot_hold_are_refused() -> None:
    assert written(float | Schedule, math.inf, "lr") == "inf"
    assert written(float | Schedule, tg.Power(0.1, -0.5), "lr") == {"value": 0.1, "exponent": -0.5}
    assert written(Mapping[int | str, str] | None, {3: "here"}, "place") == {"3": "here"}
    for hint, value in (
        (float, math.nan),
        (dict, {3: 1}),
        (str, math.inf),
        (object, torch.ones(2)),
        (object, tg.Noise()),
        (int, {1}),
    ):
        with pytest.raises(tg.Invalid, match="its argument `a` is of type"):
            written(hint, value, "a")


def own() -> tg.Method:
    return tg.clip2(**CLIP2)


@constructor
def constructed(given: dict[str, dict[int, list[float]]]) -> tg.Method:
    return replace(tg.clip2(**CLIP2))


class Size(StrEnum):
    small = "s"
    large = "l"


class Level(Enum):
    low = 1


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [(Size, Size.large, "l"), (Level | None, Level.low, 1), (Path, Path("data"), "data"), (Path | None, None, None)],
)
def test_members_of_enums_and_paths_are_read_back(hint: object, value: object, text: object) -> None:
    assert written(hint, value, "key") == text
    assert conform(hint, text, "key", spec=True) == value
    assert type(conform(hint, text, "key", spec=True)) is type(value)
