"""The public surface: one import line per name, each documented, and nothing by accident."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tardygrad
from tardygrad.constructors import described

INIT = Path(tardygrad.__file__)
NAMES = [
    alias.asname
    for node in ast.walk(ast.parse(INIT.read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tardygrad")
    for alias in node.names
]


def test_every_name_is_imported_when_it_is_used() -> None:
    assert dir(tardygrad) == sorted(NAMES) == sorted(tardygrad.__all__)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="module 'tardygrad' has no attribute 'simulat'") as caught:
        tardygrad.simulat  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.obj, caught.value.name) == (tardygrad, "simulat"), "Python adds: Did you mean: 'simulate'?"


def test_public_names_are_documented() -> None:
    for name in NAMES:
        value = getattr(tardygrad, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
            assert not value.__doc__.startswith(f"{name}("), name  # not the one a dataclass makes up


def test_every_setting_of_a_run_is_described() -> None:
    assert described(tardygrad.Settings).keys() == tardygrad.Settings.__annotations__.keys()


def test_every_public_name_is_written_as_itself_and_once() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert all(names is not None for names in NAMES)


def test_the_docs_name_every_public_name() -> None:
    api = (INIT.parents[2] / "docs/api.md").read_text(encoding="utf-8")
    missing = [name for name in NAMES if f"`{name}`" not in api and f"`{name}(" not in api]
    assert not missing


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (tardygrad.Fleet.paper, {"client": 4}, "Fleet.paper has no argument `client`. Did you mean 'clients'?"),
        (
            tardygrad.tasks.quadratic,
            {"dimensions": 4},
            "quadratic has no argument `dimensions`. Did you mean 'dimension'?",
        ),
        (tardygrad.tasks.quadratic, {}, "quadratic needs `clients`."),
        (tardygrad.tasks.fashion, {"client": 4}, "has no argument `client`. Did you mean 'clients'?"),
        (tardygrad.SimPool, {"worker": 2}, "SimPool has no argument `worker`. Did you mean 'workers'?"),
        (tardygrad.TorchTask, {"los": 2}, "TorchTask has no argument `los`. Did you mean 'loss'?"),
        (tardygrad.LogNormal, {"mean": 1}, "LogNormal has no argument `mean`. Did you mean 'median'?"),
        (tardygrad.shard, {"xyz": 2}, "shard has no argument `xyz`. Its arguments are data, clients, by, how, "),
    ],
)
def test_a_wrong_or_missing_argument_is_named(make: Callable[..., object], given: dict[str, int], message: str) -> None:
    with pytest.raises(tardygrad.Invalid, match=re.escape(message)):
        make(**given)
