"""Arguments of a wrong type are refused where they are given: from Python by the same rules as in a spec."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.constructors import conform
from tardygrad.fleet import AvailabilityFile, Available, Crash, Diurnal, Fault, Slow, SlowSpells
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


@pytest.mark.parametrize(("make", "good"), GOOD, ids=[getattr(make, "func", make).__qualname__ for make, _ in GOOD])
def test_an_argument_of_another_type_is_refused_and_named(make: Callable[..., Any], good: dict[str, Any]) -> None:
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
        (float, "4", "`a.b` must be a number, got '4'."),
        (float, True, "`a.b` must be a number, got true."),
        (float | None, float("nan"), "`a.b` must be a number, got nan."),
        (int, 4.0, "`a.b` must be a whole number, got 4.0."),
        (list[float], ["x"], "`a.b[0]` must be a number, got 'x'."),
        (dict[str, int], {"k": "x"}, "`a.b['k']` must be a whole number, got 'x'."),
        (tuple[int, ...], [1, "x"], "`a.b[1]` must be a whole number, got 'x'."),
    ],
)
def test_a_spec_has_the_same_rules(hint: Any, value: Any, text: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        conform(hint, value, "a.b", spec=True)
    assert str(caught.value) == text
    assert type(conform(float, 4, "a.b", spec=True)) is float
