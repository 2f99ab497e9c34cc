"""Constructors: the signature of a function or a class is the one description of what it makes.

From it come the check of a call in Python (`checked`), the call that an object was made by (`constructor`, `call_of`),
the object of a spec's table (`arguments`, `call`), the table of an object (`written_arguments`), and the JSON schema of
a spec (`json_schema`). pydantic walks the type hints and finds where a value breaks a rule; the rules are these:

float, int, bool, str, Literal   exactly that type: "4" and True are no numbers; numbers of NumPy are floats
X | None                         in a spec, None is the key left out, or null in JSON
a tuple                          a list may stand for it; in a spec, also a single word for a list of words
a dataclass                      in a spec, a table with its fields; if several classes are possible, with `kind`, the
                                 class's name in lower case, or that name alone
a protocol                       in a spec, a table whose `kind` names a function of your own
an Enum, Path                    in a spec, the value of a member; a string
inf                              in a spec, inf; in JSON "inf"
a function                       not looked at: who calls it knows better what it must be
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from tardygrad import own_code, streams
from tardygrad.errors import Invalid, TardygradError, described_error, is_number, is_out_of_memory, nearest, shown

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Make = Callable[..., Any]
"""A constructor: a function or a class."""

Parameters = Mapping[str, inspect.Parameter]
"""Keyword arguments by name; the annotation is the type itself, never a string."""

Table = dict[str, Any]
"""A table, as TOML or JSON gives it."""

OBJECTS = ("method", "task", "fleet", "pool", "run")
"""Arguments whose types have checks of their own, which say more."""

_UNKNOWN = object()  # an argument that a dataclass does not keep
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


# Calls that are checked, and calls that are remembered


@overload
def checked(make: F, /) -> F: ...
@overload
def checked(*, passes_to: Sequence[Make]) -> Callable[[F], F]: ...
def checked(make: Any = None, *, passes_to: Sequence[Make] = ()) -> Any:
    """A decorator for functions, methods, `__init__` and dataclasses: it checks the arguments of every call.

    An argument that is unknown, missing or of another type raises `Invalid`.

    Args:
        make: the function or class.
        passes_to: functions that get the arguments in its `**`. Help and specs show these arguments with the types and
            defaults of these functions, and with their descriptions where the function's docstring leaves them out.
    """
    return _decorated(make, passes_to, keep=False)


@overload
def constructor(make: F, /) -> F: ...
@overload
def constructor(*, passes_to: Sequence[Make]) -> Callable[[F], F]: ...
def constructor(make: Any = None, *, passes_to: Sequence[Make] = ()) -> Any:
    """As `checked`; the object that the function makes also remembers the call, as `call_of`."""
    return _decorated(make, passes_to, keep=True)


def _decorated(make: Any, targets: Sequence[Make], *, keep: bool) -> Any:
    if make is None:
        return lambda make: _decorated(make, targets, keep=keep)
    if isinstance(make, type):
        make.__init__ = _decorated(make.__init__, targets, keep=keep)  # type: ignore[misc]
        return make
    if targets:
        _show_passed(make, targets)
    names = list(inspect.signature(make).parameters)

    @wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        by_order, by_name = _checked_arguments(make, args, kwargs)
        result = make(*by_order, **by_name)
        return _with_call(result, call, names, args, kwargs) if keep else result

    return call


def _checked_arguments(make: Make, args: Sequence[Any], kwargs: Table) -> tuple[list[Any], Table]:
    """The arguments of a call, checked."""
    name, known, by_position, required = _called(make)
    if len(args) > len(by_position):
        named = [f"{key}=..." for key in known if key not in by_position]
        fix = f"takes its settings by name, such as {named[0]}" if named else f"has no argument after `{[*known][-1]}`"
        raise Invalid(f"{name} {fix}, got {args[len(by_position)]!r}.")
    for key in kwargs:
        if key not in known:
            fix = nearest(key, known) or f" Its arguments are {', '.join(known)}."
            raise Invalid(f"{name} has no argument `{key}`.{fix}")
    given = {*by_position[: len(args)], *kwargs}
    if missing := [f"`{key}`" for key in required if key not in given]:
        raise Invalid(f"{name} needs {', '.join(missing)}.")
    by_order = [conform(known.get(key, Any), value, key) for key, value in zip(by_position, args, strict=False)]
    return by_order, {key: conform(known[key], value, key) for key, value in kwargs.items()}


@cache
def _called(make: Make) -> tuple[str, dict[str, Any], list[str], list[str]]:
    """The name of a function, the types of its arguments, those that may be given by position, and those needed."""
    hints, signature = _hints(make), inspect.signature(make).parameters.values()
    known: dict[str, Any] = {}
    for each in signature:
        if each.kind is each.VAR_KEYWORD:
            known |= _passed(hints[each.name])
        elif each.name not in ("self", "cls"):
            known[each.name] = Any if each.name in OBJECTS else hints.get(each.name, Any)
    by_position = [each.name for each in signature if each.kind is each.POSITIONAL_OR_KEYWORD]
    required = [each.name for each in signature if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return make.__qualname__.removesuffix(".__init__"), known, by_position, required


def _hints(make: Make) -> dict[str, Any]:
    function = inspect.getattr_static(make, "__init__") if inspect.isclass(make) else make
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # such as names that are imported for type checkers only
        return {}


def _passed(hint: Any) -> dict[str, Any]:
    """The arguments in a function's `**`: the keys of a TypedDict in Unpack[...]."""
    (settings,) = get_args(hint)
    return get_type_hints(settings, include_extras=True)


def _show_passed(make: Any, targets: Sequence[Make]) -> None:
    """Give a function the signature, the annotations and the docstring that also have the arguments it passes on."""
    signature = inspect.signature(make)
    passed = {key: found for each in targets for key, found in inspect.signature(each).parameters.items()}
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name in signature.parameters.keys() - {p.name for p in shown}:
        for key, hint in _passed(_hints(make)[name]).items():
            shown.append(passed[key].replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint))
    make.__signature__ = signature.replace(parameters=shown)
    annotations = {p.name: p.annotation for p in shown if p.annotation is not p.empty}
    make.__annotations__ = annotations | {"return": signature.return_annotation}
    own, texts = described(make), {key: text for each in targets for key, text in described(each).items()}
    lines = [f"    {p.name}: {texts[p.name]}" for p in shown if p.name not in own and p.name in texts]
    text, blank, example = (inspect.getdoc(make) or "").partition("\n\n>>>")
    make.__doc__ = "\n".join([text if own else f"{text}\n\nArgs:", *lines]) + blank + example


def described(make: Make) -> dict[str, str]:
    """The descriptions of a function's or a class's arguments in its docstring."""
    _, _, text = (inspect.getdoc(make) or "").partition("Args:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in found}


@dataclass(frozen=True)
class Call:
    """A call that makes an object, so that a record or another process can make it again.

    It is an attribute of the object: a copy has it too, and an object from `dataclasses.replace` has none.

    Args:
        function: the function or class.
        arguments: its arguments by name, without defaults.
        inner: of the object that the function returned, if another call made it.
    """

    function: Make
    arguments: Table
    inner: Call | None = None

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

    def table(self) -> Table:
        """The call as a table, in strict JSON.

        Raises:
            Invalid: JSON cannot hold it, or its function cannot be imported.
        """
        return {"kind": self.name, **written_arguments(parameters(self.function), self.arguments)}


def call_of(component: object) -> Call | None:
    """How an object was made; None if that is not known."""
    found = getattr(component, "_call", None)
    return found if isinstance(found, Call) else None


def remember(component: R, made_by: Call | None) -> R:
    """Attach a call to an object that can have attributes, also to a frozen dataclass; None removes it."""
    before = call_of(component)
    if made_by is not None and before is not None and before.function != made_by.function:
        made_by = replace(made_by, inner=before)
    with suppress(AttributeError, TypeError):
        object.__setattr__(component, "_call", made_by)
    return component


def _with_call(result: Any, call: Make, names: Sequence[str], args: Sequence[Any], kwargs: Table) -> Any:
    """What a constructor returned, with the call; the target of `__init__` is its first argument."""
    given = dict(zip(names, args, strict=False)) | kwargs
    arguments = {key: copied(value) for key, value in given.items() if key not in ("self", "cls")}
    if names[:1] == ["self"]:
        if (function := type(args[0])).__init__ is call:  # else the arguments are not those of the subclass
            remember(args[0], Call(function, arguments))
        return result
    return remember(result, Call(types.MethodType(call, args[0]) if names[:1] == ["cls"] else call, arguments))


def copied(value: Any) -> Any:
    """A copy of lists, dicts and tuples at any depth, so that what is done to it reaches no remembered call."""
    try:
        return _copied(value)
    except RecursionError:
        raise Invalid("an argument must not contain itself, or be nested so deeply that Python gives up.") from None


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def call_seeded(function: Callable[..., R], given: Table) -> R:
    """Call a function that makes a task or another object, so that it makes the same one in every process.

    It gets copies of its arguments, and what it draws from the global generators depends on its argument `seed` alone.
    """
    from tardygrad.seeding import seeded

    number = given.get("seed")
    with seeded(streams.key(number if isinstance(number, int) else 0, "make")):
        return function(**copied(given))


def make(function: Callable[..., R], /, **arguments: Any) -> R:
    """Call a function of your own that makes a task, a method, a fleet or a pool, and remember the call.

    The run's record then names the function and its arguments, so `tardygrad resume`, `replay`, `doctor` and `tail` can
    make the object again, and reports know its settings. For that the function must be importable (not of the script
    itself) and its arguments must be numbers, text, lists and tables.

    Args:
        function: the function or class.
        arguments: its arguments.

    >>> from tardygrad.methods.clip2 import clip2
    >>> make(clip2, local_lr=0.01, local_clip=0.5, lr=0.1, clip=1.0, buffer=10, local_steps=5).buffer
    10
    """
    if not callable(function):
        raise Invalid(f"`make` needs a function and its arguments, got {function!r}. Use make(function, key=value).")
    component = remember(call_seeded(function, arguments), Call(function, copied(arguments)))
    if call_of(component) is None:
        rule = "`make` needs a function that returns a task, a method, a fleet or a pool"
        raise Invalid(f"{rule}, got a {type(component).__name__}, which cannot have attributes.")
    return component


@cache
def parameters(make: Make) -> Parameters:
    """The keyword arguments of a constructor; one without a type hint that can be resolved takes any value."""
    hints = _hints(make)
    found = {name: each for name, each in own_code.signature(make).parameters.items() if each.kind in _NAMED}
    return {name: each.replace(annotation=hints.get(name, Any)) for name, each in found.items()}


# What a value of a type must be


def conform(hint: Any, value: Any, where: str, *, spec: bool = False) -> Any:
    """A value of a type: a tuple in place of a list, and in a spec the object of a table.

    Args:
        where: the value's name, for the error.
        spec: whether it is of a spec.

    >>> conform(tuple[float, ...] | None, [1, 2.5], "seconds")
    (1, 2.5)
    """
    options = members(hint)
    if Any in options:
        return value
    if spec:
        value = _from_toml(hint, value, where)
    for option in options:
        origin, args = get_origin(option), get_args(option)
        if origin is tuple and isinstance(value, tuple | list):
            if args[-1] is ... and set(map(type, value)) <= {args[0]}:  # quick for long tuples
                return tuple(value)
            hints = item_hints(option, len(value))
            if len(hints) == len(value):
                items = enumerate(zip(hints, value, strict=True))
                return tuple(conform(each, item, f"{where}[{i}]", spec=spec) for i, (each, item) in items)
        elif _is(option, value, spec=spec):
            if origin is list or origin in (dict, Mapping):
                for key, item in enumerate(value) if origin is list else value.items():
                    conform(args[-1], item, f"{where}[{key!r}]", spec=spec)
            return float(value) if spec and option is float else value
    fix = _fix(hint, value, where, spec=spec)
    raise Invalid(f"`{where}` must be {rule(hint, spec=spec)}, got {shown(value, toml=spec)}.{fix}")


def _from_toml(hint: Any, value: Any, where: str) -> Any:
    """The object that a table or a word of a spec stands for; the value itself if it stands for nothing else."""
    options, classes = members(hint), classes_in(hint)
    kinds = {name: make for name, make in classes.items() if make in options}  # the others go by their keys
    if isinstance(value, dict):
        if len(kinds) > 1 or any(map(is_protocol, options)):
            _, make, rest = choose(kinds, value, where)
            return construct(make, rest, where)
        for make in sorted(classes.values(), key=lambda make: not parameters(make).keys() & value.keys()):
            return construct(make, value, where)
    if isinstance(value, str):
        if value in kinds and len(kinds) > 1:
            return kinds[value]()
        if value == "inf" and float in options:
            return math.inf
        if Path in options and str not in options:
            return Path(value)
        if any(get_origin(each) is tuple and get_origin(get_args(each)[0]) is Literal for each in options):
            return [value]  # a word in place of a list
    enums = [each for each in options if isinstance(each, type) and issubclass(each, Enum)]
    return next((member for each in enums for member in each if member.value == value), value)


def _is(option: Any, value: Any, *, spec: bool) -> bool:
    """Whether a value is of a type that is no union and no tuple; True if that cannot be told.

    Functions are not looked at: who calls them knows better what they must be.
    """
    origin = get_origin(option)
    if option is float:
        large = isinstance(value, int) and abs(value) > sys.float_info.max  # which no float can hold
        return is_number(value) and not large and not (spec and math.isnan(value))
    if option in (int, str):
        return isinstance(value, int if option is int else str | PathLike) and not isinstance(value, bool)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in get_args(option))
    if origin in (list, dict, Mapping):
        return isinstance(value, origin)
    if origin in (Sequence, Iterable):
        with suppress(TypeError):
            iter(value)  # an array without dimensions has the method for it, and no items
            return not isinstance(value, str | Mapping)
        return False
    if is_protocol(option):
        if not option._is_runtime_protocol or any(isinstance(member, property) for member in vars(option).values()):
            return not isinstance(value, bool | int | float | str | None)  # to look for properties may compute them
        return isinstance(value, option) and not isinstance(value, type)
    if isinstance(option, type) and origin is None:
        return isinstance(value, option)
    if spec and (classes := classes_in(option)):
        return type(value) in classes.values()
    return origin is not tuple


def is_protocol(option: Any) -> bool:
    """Whether a type is a protocol: objects of your own are of it."""
    return bool(getattr(option, "_is_protocol", False))


@cache
def members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; otherwise the hint itself, without notes that others read."""
    if get_origin(hint) is Annotated and not any(map(is_dataclass, hint.__metadata__)):
        return members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def classes_in(hint: Any) -> dict[str, type]:
    """The dataclasses that a value may be of, by their names in lower case; also those of a schedule."""
    found = [each for option in members(hint) for each in (option, *getattr(option, "__metadata__", ()))]
    return {each.__name__.lower(): each for each in found if isinstance(each, type) and is_dataclass(each)}


def item_hints(option: Any, length: int) -> list[Any]:
    """The types of a tuple's items."""
    hints = get_args(option)
    return [hints[0]] * length if hints[-1] is ... else list(hints)


_WORDS: dict[Any, str] = {
    Any: "any value", int: "a whole number", float: "a number", str: "a string", bool: "true or false", Path: "a path",
    type(None): "None",
}  # fmt: skip


def rule(hint: Any, *, spec: bool = False) -> str:
    """What a value may be, for an error message.

    >>> rule(int | None), rule(tuple[str, ...], spec=True)
    ('a whole number or None', 'a list, each item a string')
    """
    options = [each for each in members(hint) if not (spec and each is type(None))]
    return " or ".join(dict.fromkeys(_WORDS.get(each) or _rule(each, hint, spec=spec) for each in options))


def _rule(option: Any, hint: Any, *, spec: bool) -> str:
    """The rule for one of the types of a union."""
    origin, hints = get_origin(option), get_args(option)
    if origin is Literal or (isinstance(option, type) and issubclass(option, Enum)):
        words = hints or [member.value for member in option]
        return "one of " * (len(words) > 1) + ", ".join(map(str, words))
    if origin in (Annotated, Callable):
        return next((text for text in hints[1:] if spec and isinstance(text, str)), "a function")
    if origin is tuple:
        return f"a list, each item {rule(hints[0], spec=spec)}" if hints[-1] is ... else "a pair"
    if origin in (dict, Mapping) and not spec:
        return "a dict"
    if spec:
        kinds = list(classes_in(hint))
        return f"a table whose kind is one of {', '.join(kinds)}" if len(kinds) > 1 else "a table"
    names = [each.__name__ for each in members(hint) if isinstance(each, type) and each not in _WORDS]
    if len(names) > 1:
        return f"one of {', '.join(names)}"
    name = "list" if origin in (Sequence, Iterable) else str(getattr(origin or option, "__name__", option))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _fix(hint: Any, value: Any, where: str, *, spec: bool) -> str:
    """What to do about a value that a type does not take: the nearest word, or where the word belongs."""
    classes, options = classes_in(hint), members(hint)
    words = [word for option in options if get_origin(option) is Literal for word in get_args(option)]
    if classes and not spec:
        return f" Use {next(iter(classes.values())).__name__}(...)."
    if not isinstance(value, str):
        return ""
    for make in classes.values():
        kind = parameters(make).get("kind")
        if kind and value in get_args(kind.annotation):
            return f" Write {where}.kind={value}."
    return nearest(value, words or (classes if len(classes) > 1 else ()))


# From a table to an object


def arguments(known: Parameters, table: Table, where: str) -> Table:
    """All arguments of a constructor: the values of a table of a spec, and defaults for the others."""
    for key in table:
        if key not in known:
            fix = nearest(key, known) or f" Known keys: {', '.join(known) or 'none'}."
            raise Invalid(f"{place(where)} has no key `{key}`.{fix}")
    for key, each in known.items():
        if key not in table and each.default is each.empty:
            raise Invalid(f"{place(where)} needs the key `{key}`: {rule(each.annotation, spec=True)}.")
    return {
        key: conform(each.annotation, table[key], f"{where}.{key}", spec=True) if key in table else each.default
        for key, each in known.items()
    }


def choose(kinds: Mapping[str, Make], table: Table, where: str) -> tuple[str, Make, Table]:
    """A table's `kind`, its constructor, and the rest of the table."""
    rest = dict(table)
    kind = rest.pop("kind", None)
    if kind is None:
        raise Invalid(f"{place(where)} needs the key `kind`: one of {', '.join(kinds)}.")
    if own_code.is_own(kind):
        return kind, own_code.find(kind, where), rest
    if not isinstance(kind, str) or kind not in kinds:
        fix = nearest(str(kind), kinds) or " Or name your own function: package.module:function."
        raise Invalid(f"`{where}.kind` must be one of {', '.join(kinds)}, got {shown(kind, toml=True)}.{fix}")
    return kind, kinds[kind], rest


def construct(make: Make, table: Table, where: str) -> Any:
    """Call a constructor with the values of a table."""
    return call(make, arguments(parameters(make), table, where), where)


def call(make: Make, given: Table, where: str) -> Any:
    """Call a constructor; its errors say where in the spec the values came from."""
    try:
        with chdir("."):  # own code may change the current directory; paths of the command are relative to it
            return call_seeded(make, given)
    except Invalid as error:
        raise Invalid(f"in {place(where)}: {error}") from error
    except TardygradError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error) or isinstance(error, OverflowError):
            text = f"not enough memory for these sizes ({shown(str(error))}). Use smaller values."
            raise Invalid(f"in {place(where)}: {text}") from error
        raise Invalid(f"in {place(where)}: {described_error(error)}.") from error


def place(where: str) -> str:
    """Format the name of a table or a key for an error message."""
    return f"`{where}`" if "." in where else f"[{where}]"


# From an object to a table


def written_arguments(known: Parameters, given: Mapping[str, Any]) -> Table:
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
    """A value as strict JSON, which its type can turn back into the same value."""
    options, classes = members(hint), classes_in(hint)
    if not isinstance(value, type) and type(value) in classes.values():
        kind = {"kind": type(value).__name__.lower()} if type(value) in options and len(classes) > 1 else {}
        return kind | _written_fields(value)
    if any(is_protocol(option) and _is(option, value, spec=False) for option in options):
        return _written_object(value, where)
    if isinstance(value, tuple | list):
        hints = next(
            (item_hints(each, len(value)) for each in options if get_origin(each) is tuple), [Any] * len(value)
        )
        return [written(item_hint, item, where) for item_hint, item in zip(hints, value, strict=True)]
    if isinstance(value, Mapping):
        numbered = any(get_origin(o) in (Mapping, dict) and int in members(get_args(o)[0]) for o in options)
        if all(isinstance(key, str) or (numbered and type(key) is int) for key in value):
            return {written(Any, str(key), where): written(Any, item, where) for key, item in value.items()}
    if isinstance(value, PathLike) and {str, Path} & {*options}:
        value = str(value)
    if isinstance(value, str) and not is_unicode(value):
        raise Invalid(f"its argument `{where}` has text that is not Unicode, {value!a}")
    if isinstance(value, Enum) and type(value) in options:
        return written(Any, value.value, where)
    if float in options and is_number(value) and not isinstance(value, int):
        value = "inf" if value == math.inf else float(value)  # of NumPy, or a fraction
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise Invalid(f"its argument `{where}` is of type {type(value).__name__}, which JSON cannot hold")


def _written_object(value: Any, where: str) -> Table:
    """The table of an object of a class of your own: a dataclass, or one that was made by `make`."""
    if found := call_of(value):
        return found.table()
    if is_dataclass(value):
        return {"kind": Call(type(value), {}).name, **_written_fields(value)}
    fix = "make it a dataclass, or make it by tardygrad.make"
    raise Invalid(f"its argument `{where}` is a {type(value).__name__}, and nothing says how it was made: {fix}")


def _written_fields(value: Any) -> Table:
    """The arguments of a dataclass, which are its fields."""
    make: Make = type(value)
    known = parameters(make)
    return written_arguments(known, {key: getattr(value, key, _UNKNOWN) for key in known})


def is_unicode(text: str) -> bool:
    """Whether a text can be written to a file: it has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
