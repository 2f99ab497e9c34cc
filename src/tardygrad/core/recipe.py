"""How an object was made: the function and its arguments, so that a record or another process can make it again.

The constructors of methods, ready tasks, fleets and engines remember their calls by themselves (`remembers_call`);
`runs.recipes.make` does so for functions of your own. The recipe is an attribute of the object: a copy has it too, and
an object from `dataclasses.replace` has none.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from tardygrad import streams
from tardygrad.core.schedules import Cosine, Power, Schedule
from tardygrad.errors import Invalid
from tardygrad.seeding import seeded
from tardygrad.type_hints import classes_in, is_number, item_hints, union_members

P = ParamSpec("P")
R = TypeVar("R")

Make = Callable[..., Any]
"""A constructor: a function or a class."""

Parameters = Mapping[str, inspect.Parameter]
"""Keyword arguments by name; the annotation is the type itself, never a string."""

_UNKNOWN = object()  # an argument that a dataclass does not keep

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Recipe:
    """A call that makes an object.

    Args:
        function: the function or class.
        arguments: its arguments by name, without defaults.
        inner: of the object that the function returned, if another call made it.
    """

    function: Make
    arguments: dict[str, Any]
    inner: Recipe | None = None

    @property
    def name(self) -> str:
        """The function as `package.module:function`.

        Raises:
            Invalid: another process cannot import it.
        """
        name, module = getattr(self.function, "__qualname__", ""), getattr(self.function, "__module__", "")
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if module == "__main__":
            raise Invalid(f"its function `{name}` is in the script itself, which cannot be imported")
        if found != self.function:
            raise Invalid(f"its function `{name or self.function}` is not one that can be imported by its name")
        return f"{module}:{name}"


def recipe_of(component: object) -> Recipe | None:
    """How an object was made; None if that is not known."""
    recipe = getattr(component, "_recipe", None)
    return recipe if isinstance(recipe, Recipe) else None


def remember(component: R, recipe: Recipe | None) -> R:
    """Attach a recipe to an object that can have attributes, also to a frozen dataclass; None removes it."""
    before = recipe_of(component)
    if recipe is not None and before is not None and before.function != recipe.function:
        recipe = replace(recipe, inner=before)
    with suppress(AttributeError, TypeError):
        object.__setattr__(component, "_recipe", recipe)
    return component


def remembers_call(constructor: Callable[P, R]) -> Callable[P, R]:
    """The same function, method or `__init__`, whose result has a recipe: this call."""
    names = list(inspect.signature(constructor).parameters)
    bound = names[0] in ("self", "cls")

    @wraps(constructor)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(zip(names, args, strict=False)) | kwargs
        arguments = {key: copied(value) for key, value in given.items() if key not in ("self", "cls")}
        result = constructor(*args, **kwargs)
        target: Any = result
        function: Make = call
        if bound and constructor.__name__ == "__init__":
            target = args[0]
            function = type(target)
            if function.__init__ is not call:  # the arguments are not those of the subclass
                return result
        elif bound:
            function = types.MethodType(call, args[0])
        remember(target, Recipe(function, arguments))
        return result

    return call


def copied(value: Any) -> Any:
    """A copy of lists, dicts and tuples at any depth, so that what is done to it reaches no recipe."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return type(value)(map(copied, value)) if type(value) in (list, tuple) else value


def call_seeded(function: Callable[..., R], arguments: dict[str, Any]) -> R:
    """Call a function that makes a task or another object, so that it makes the same one in every process.

    It gets copies of its arguments, and what it draws from the global generators depends on its argument `seed` alone.
    """
    number = arguments.get("seed")
    with seeded(streams.key(number if isinstance(number, int) else 0, "make")):
        return function(**copied(arguments))


@cache
def parameters(make: Make) -> Parameters:
    """The keyword arguments of a constructor; one without a type hint that can be resolved takes any value."""
    try:
        hints = get_type_hints(inspect.getattr_static(make, "__init__") if inspect.isclass(make) else make)
    except (NameError, TypeError, AttributeError):  # such as names that are imported for type checkers only
        hints = {}
    found = {name: parameter for name, parameter in _signature(make).parameters.items() if parameter.kind in _NAMED}
    return {name: parameter.replace(annotation=hints.get(name, Any)) for name, parameter in found.items()}


def unnamed_arguments(make: Make) -> list[str]:
    """The arguments that a constructor needs and that cannot be passed by name."""
    found = _signature(make).parameters.items()
    return [
        name
        for name, parameter in found
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty
    ]


def _signature(make: Make) -> inspect.Signature:
    try:
        return inspect.signature(make)
    except (TypeError, ValueError) as error:
        raise Invalid(f"its function {make!r} has no signature that Python can read") from error


def written_arguments(known: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments in strict JSON, which a spec can hold; defaults that JSON cannot hold are left out.

    Raises:
        Invalid: an argument is not one of `known`, or JSON cannot hold it.
    """
    table = {}
    for key, value in given.items():
        if key not in known:
            raise Invalid(f"its function takes no argument `{key}` by that name")
        try:
            table[key] = written(known[key].annotation, value, key)
        except Invalid:
            if value is not known[key].default:
                raise
    return table


def written(hint: Any, value: Any, where: str) -> Any:
    """A value as strict JSON, which its type hint can turn back into the same value."""
    choices = union_members(hint)
    if is_dataclass(value) and not isinstance(value, type):
        make: Make = type(value)
        if make in choices or (Schedule in choices and make in (Power, Cosine)):
            kind = {"kind": make.__name__.lower()} if len(classes_in(choices)) > 1 else {}
            known = parameters(make)
            return kind | written_arguments(known, {key: getattr(value, key, _UNKNOWN) for key in known})
    if any(getattr(option, "_is_runtime_protocol", False) and isinstance(value, option) for option in choices):
        return _written_own(value, where)
    if isinstance(value, tuple | list):
        tuples = [item_hints(option, len(value)) for option in choices if get_origin(option) is tuple]
        hints = next((hints for hints in tuples if len(hints) == len(value)), [Any] * len(value))
        return [written(item_hint, item, where) for item_hint, item in zip(hints, value, strict=True)]
    numbered = any(get_origin(o) in (Mapping, dict) and int in union_members(get_args(o)[0]) for o in choices)
    for text in value if isinstance(value, Mapping) else (value,):
        if isinstance(text, str) and not is_unicode(text):
            raise Invalid(f"its argument `{where}` has text that is not Unicode, {text!a}")
    if isinstance(value, Mapping) and all(isinstance(key, str) or (numbered and type(key) is int) for key in value):
        return {str(key): written(Any, item, where) for key, item in value.items()}
    if float in choices and is_number(value) and not isinstance(value, int):
        value = float(value)  # of NumPy, or a fraction
    if isinstance(value, float) and value == math.inf and float in choices:
        return "inf"
    if hasattr(value, "__fspath__") and any(option is str or hasattr(option, "__fspath__") for option in choices):
        return written(str, str(value), where)
    if isinstance(value, Enum) and type(value) in choices:
        return written(Any, value.value, where)
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise Invalid(f"its argument `{where}` is of type {type(value).__name__}, which JSON cannot hold")


def _written_own(value: Any, where: str) -> dict[str, Any]:
    """The table of an object of a class of your own: a dataclass, or one that was made by `make`."""
    recipe = recipe_of(value)
    if recipe is None:
        if not is_dataclass(value):
            fix = "make it a dataclass, or make it by tardygrad.make"
            raise Invalid(
                f"its argument `{where}` is a {type(value).__name__}, and nothing says how it was made: {fix}"
            )
        make: Make = type(value)
        recipe = Recipe(make, {key: getattr(value, key, _UNKNOWN) for key in parameters(make)})
    return {"kind": recipe.name, **written_arguments(parameters(recipe.function), recipe.arguments)}


def is_unicode(text: str) -> bool:
    """Whether a text can be written to a file: it has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
