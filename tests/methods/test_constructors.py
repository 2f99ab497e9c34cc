"""Constructors of methods: a wrong, missing or misspelt setting is an `Invalid` that names the rule and the fix."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.constructors import described, parameters
from tardygrad.methods.constructor import MethodSettings
from tardygrad.runs.kinds import KINDS

METHODS: dict[str, Any] = KINDS["method"]
CLIP2: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "clip": 1.0, "buffer": 4, "local_steps": 2}


def refusal(make: Any, *args: Any, **settings: Any) -> str:
    with pytest.raises(tg.Invalid) as caught:
        make(*args, **settings)
    return str(caught.value)


def test_a_misspelt_setting_is_answered_with_the_nearest_name() -> None:
    assert refusal(tg.clip2, bufer=4) == "clip2 has no argument `bufer`. Did you mean 'buffer'?"
    assert refusal(tg.clip2, **CLIP2, local_step=4) == "clip2 has no argument `local_step`. Did you mean 'local_steps'?"


def test_a_setting_of_another_method_is_answered_with_the_settings_there_are() -> None:
    said = refusal(tg.clip2, **CLIP2, momentum=0.9)
    assert said.startswith("clip2 has no argument `momentum`. Its arguments are local_lr, local_clip, lr, clip, ")
    assert said.endswith("local_epochs, max_delay, concurrency, dispatch, weight_by, privacy.")


def test_missing_settings_are_named() -> None:
    assert refusal(tg.clip2, local_lr=0.1, local_clip=1.0, lr=1.0, buffer=4) == "clip2 needs `clip`."
    assert refusal(tg.fedavg, local_steps=1) == "fedavg needs `buffer`."


def test_settings_are_given_by_name() -> None:
    assert refusal(tg.clip2, 0.1) == "clip2 takes its settings by name, such as local_lr=..., got 0.1."


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_answers_so_and_shows_its_signature(kind: str) -> None:
    assert refusal(METHODS[kind], momentun=1).startswith(f"{kind} has no argument `momentun`.")
    known = parameters(METHODS[kind])
    assert MethodSettings.__annotations__.keys() | {"buffer", "mode", "local_lr"} <= known.keys()
    assert list(inspect.signature(METHODS[kind]).parameters) == list(known)


@pytest.mark.parametrize("kind", METHODS)
def test_the_help_of_every_method_describes_every_setting_once(kind: str) -> None:
    assert described(METHODS[kind]).keys() == parameters(METHODS[kind]).keys()
    for name in parameters(METHODS[kind]):
        assert METHODS[kind].__doc__.count(f"\n    {name}: ") == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS["task"] if kind != "quadratic"])
def test_the_help_of_a_task_describes_what_it_passes_on(kind: str) -> None:
    assert described(KINDS["task"][kind]).keys() == parameters(KINDS["task"][kind]).keys()
