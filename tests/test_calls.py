"""Recipes: how an object was made, kept with the object and never wrong."""

from __future__ import annotations

import copy
import json
import math
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch

import tardygrad as tg
from tardygrad.constructors import Call, call_of, call_seeded, conform, constructor, parameters, written
from tardygrad.core.schedules import Schedule
from tardygrad.runs.tables import table_of_call

METHOD = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 0.5, "buffer": 2, "local_steps": 2}


def test_a_constructor_remembers_its_call() -> None:
    assert call_of(tg.clip2(**METHOD)) == Call(tg.clip2, METHOD)
    assert call_of(tg.tasks.quadratic(clients=3)) == Call(tg.tasks.quadratic, {"clients": 3})
    assert call_of(tg.Fleet.paper(clients=3)) == Call(tg.Fleet.paper, {"clients": 3})
    method, task, fleet = tg.clip2(**METHOD), tg.tasks.quadratic(clients=3), tg.Fleet.paper(clients=3)
    with tg.SimPool(task, method, fleet, batch=1) as pool:
        assert call_of(pool) == Call(tg.SimPool, {"task": task, "method": method, "fleet": fleet, "batch": 1})


def test_a_recipe_makes_the_same_object() -> None:
    recipe = call_of(tg.tasks.quadratic(clients=3, heterogeneity=1.0))
    assert recipe is not None
    again = call_seeded(recipe.function, recipe.arguments)
    assert torch.equal(again.c, tg.tasks.quadratic(clients=3, heterogeneity=1.0).c)
    assert call_of(again) == recipe


def test_a_recipe_does_not_change_with_the_arguments() -> None:
    def mine(slopes: list[float], names: dict[str, list[str]], x: torch.Tensor) -> tg.Method:
        slopes.append(9.0)
        return tg.clip2(**METHOD)

    slopes, names, x = [1.0], {"a": ["b"]}, torch.ones(2)
    recipe = call_of(tg.make(mine, slopes=slopes, names=names, x=x))
    assert recipe is not None
    names["a"].append("c")
    for _ in range(2):
        assert (recipe.arguments["slopes"], recipe.arguments["names"]) == ([1.0], {"a": ["b"]})
        call_seeded(recipe.function, recipe.arguments)
    assert recipe.arguments["x"] is x
    probabilities = [0.5, 0.5]
    given = {"place": {0: probabilities}}
    made = constructed(given)
    probabilities[0] = given["place"][1] = 0.1  # type: ignore[call-overload]
    assert call_of(made) == Call(constructed, {"given": {"place": {0: [0.5, 0.5]}}})


def test_copies_have_the_recipe_and_changed_objects_have_none() -> None:
    method, fleet = tg.clip2(**METHOD), tg.Fleet.paper(clients=3)
    assert call_of(copy.deepcopy(fleet)) == call_of(fleet)
    assert call_of(replace(method, buffer=3)) is None
    assert call_of(fleet.crash(client=0, at=1.0)) is None
    assert call_of(tg.tasks.logistic(clients=2).to("cpu")) is None


def test_make_remembers_the_outermost_function_and_the_one_that_it_called() -> None:
    def mine(clients: int) -> object:
        return tg.tasks.quadratic(clients=clients)

    inner = Call(tg.tasks.quadratic, {"clients": 3})
    assert call_of(tg.make(mine, clients=3)) == Call(mine, {"clients": 3}, inner=inner)
    with pytest.raises(tg.Invalid, match="`make` needs a function and its arguments, got 3"):
        tg.make(3)  # type: ignore[arg-type]
    with pytest.raises(tg.Invalid, match="got a Point, which cannot have attributes"):
        tg.make(namedtuple("Point", "x"), x=1)


def test_a_function_is_named_only_if_it_can_be_imported() -> None:
    assert Call(own, {}).name == f"{__name__}:own"
    assert Call(tg.Fleet.paper, {}).name == "tardygrad.fleet.fleet:Fleet.paper"
    with pytest.raises(tg.Invalid, match=r"its function `.*<lambda>` is not one that can be imported"):
        _ = Call(lambda: None, {}).name
    script = lambda: None  # noqa: E731
    script.__module__ = "__main__"
    with pytest.raises(tg.Invalid, match="is in the script itself, which cannot be imported"):
        _ = Call(script, {}).name


def test_rates_may_be_numbers_of_numpy() -> None:
    method = tg.fedavg(local_lr=np.float32(0.5), lr=np.int64(1), buffer=2, local_steps=1)
    table = table_of_call("method", call_of(method))
    assert (table["local_lr"], table["lr"]) == (0.5, 1.0)
    json.dumps(table, allow_nan=False)


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


def test_a_type_hint_that_cannot_be_resolved_takes_any_value() -> None:
    def mine(clients: NowhereImported) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert str(parameters(mine)["clients"].annotation) == "typing.Any"
    with pytest.raises(tg.Invalid, match="has no signature"):
        parameters(dict.__init_subclass__)


def own() -> tg.Method:
    return tg.clip2(**METHOD)


@constructor
def constructed(given: dict[str, dict[int, list[float]]]) -> tg.Method:
    return replace(tg.clip2(**METHOD))


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


def test_a_word_that_is_no_member_is_refused() -> None:
    with pytest.raises(tg.Invalid, match="`key` must be one of s, l, got 'medium'"):
        conform(Size, "medium", "key", spec=True)
