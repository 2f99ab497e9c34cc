"""The contenders of a comparison from specs: overrides with several values, such as method.kind=clip2,fedbuff."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tardygrad.errors import Invalid, check_integer
from tardygrad.runs.kinds import KINDS, keys_of
from tardygrad.runs.record import Row
from tardygrad.spec.sources import read_source
from tardygrad.spec.spec import Spec, load


class Contenders(NamedTuple):
    """The specs of the runs by their names, and notes about keys that a method does not take."""

    specs: dict[str, Spec]
    notes: list[str]


def contenders(source: str | Path, changes: Sequence[str], *, seeds: int = 1, trust: bool = False) -> Contenders:
    """The runs that a spec and its overrides mean: one for each combination of values and each seed.

    A method that does not take a key of the spec's [method] gets none.
    """
    check_integer("seeds", seeds)
    lists = {key: values for key, values in map(_values, changes) if len(values) > 1}
    fixed = [text for text in changes if text.partition("=")[0] not in lists]
    if not lists:
        rule = "a comparison needs a key with several values"
        raise Invalid(f"{rule}, got {' '.join(changes) or 'none'}. Write method.kind=clip2,fedbuff, for example.")
    tables, specs, notes = read_source(source)[1], dict[str, Spec](), list[str]()
    for values in product(*lists.values()):
        point, name = dict(zip(lists, values, strict=True)), ", ".join(values)
        ours, missing = _without_foreign_keys(tables, fixed, point.get("method.kind"))
        notes += [f"{name} has no {', '.join(missing)}, which it is run without"] * bool(missing)
        overrides = [*ours, *(f"{key}={value}" for key, value in point.items())]
        first = load(source, overrides, trust=trust, starts=True).run.seed
        for seed in range(first, first + seeds):
            label = f"{name}, seed {seed}" if seeds > 1 else name
            specs[label] = load(source, [*overrides, f"run.seed={seed}"], trust=trust, starts=True)
    return Contenders(specs, notes)


def _without_foreign_keys(tables: Row, fixed: list[str], kind: str | None) -> tuple[list[str], list[str]]:
    """The overrides for a method of another kind, and the keys of [method] that it does not take."""
    if kind is None or kind not in KINDS["method"]:  # `load` says what is wrong with it
        return fixed, []
    known = {"kind", *keys_of("method", KINDS["method"][kind])}
    given = {text.partition("=")[0].split(".")[1].strip() for text in fixed if text.startswith("method.")}
    missing = sorted((given | set(tables.get("method", {}))) - known)
    own = [
        text for text in fixed if not text.startswith(tuple(f"method.{key}{end}" for key in missing for end in "=."))
    ]
    return [*own, *(f"method.{key}=" for key in missing if key in tables.get("method", {}))], missing


def _values(text: str) -> tuple[str, list[str]]:
    """The key of an override and its values: those between commas that are in no bracket and no string.

    >>> _values("method.kind=clip2,fedbuff"), _values("fleet.groups=[1, 2]")
    (('method.kind', ['clip2', 'fedbuff']), ('fleet.groups', ['[1, 2]']))
    """
    key, _, given = text.partition("=")
    values, depth, quote = [""], 0, ""
    for character in given:
        if character in "\"'":
            quote = "" if character == quote else quote or character
        depth += not quote and (character in "[{") - (character in "]}")
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    return key.strip(), [value.strip() for value in values]
