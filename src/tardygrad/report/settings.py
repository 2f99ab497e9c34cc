"""Specs as text, and how specs differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tardygrad.spec.toml import document

SPEC = 20_000  # characters of a spec that are shown
WORDS = tuple('"tfn')  # first characters of JSON values that are not numbers


def flat(tables: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a spec with its value, both as in an override.

    >>> dict(flat({"run": {"rounds": 3, "seed": 0}}))
    {'run.rounds': '3', 'run.seed': '0'}
    """
    if not isinstance(tables, dict):
        yield prefix, json.dumps(tables, ensure_ascii=False)[:400]
        return
    for key, value in tables.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else str(key))


def differing_settings(specs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The settings that tell each spec from the others, words before numbers: as few as tell all apart.

    Of tables of different kinds only the kind is named.

    >>> weights = ({"kind": "hinge", "slope": 10.0}, {"kind": "polynomial", "exponent": 0.5}, {"kind": "hinge"})
    >>> specs = [dict(flat({"method": {"lr": 0.1 + (i == 2), "weight": weight}})) for i, weight in enumerate(weights)]
    >>> differing_settings(specs)
    [['weight.kind=hinge', 'lr=0.1'], ['weight.kind=polynomial', 'lr=0.1'], ['weight.kind=hinge', 'lr=1.1']]
    """
    keys = list(dict.fromkeys(key for spec in specs for key in spec))
    names = Counter(key.partition(".")[2] for key in keys)
    differing = [key for key in keys if key != "run.seed" and _differs(key, specs)]
    chosen: list[str] = []

    def told_apart(*more: str) -> int:
        return len({tuple(spec.get(key) for key in (*chosen, *more)) for spec in specs})

    while useful := [key for key in differing if told_apart(key) > told_apart()]:
        chosen.append(max(useful, key=lambda key: (all(key in spec for spec in specs), told_apart(key))))
    found = []
    for spec in specs:
        own = sorted((key for key in chosen if key in spec), key=lambda key: spec[key][:1] not in WORDS)
        found.append([_name(key, names) + "=" + spec[key].strip('"') for key in own])
    return found


def _name(key: str, names: Counter[str]) -> str:
    """The key without its table, unless another table has the same key."""
    rest = key.partition(".")[2]
    return rest if rest and names[rest] == 1 else key


def _differs(key: str, specs: Sequence[Mapping[str, str]]) -> bool:
    """Whether specs whose tables are of the same kinds have different values of a key."""
    kinds = [f"{table}.kind" for table in accumulate(key.split(".")[:-1], "{}.{}".format)]
    alike: dict[tuple[str | None, ...], set[str | None]] = {}
    for spec in specs:
        alike.setdefault(tuple(spec.get(kind) for kind in kinds if kind != key), set()).add(spec.get(key))
    return any(len(values) > 1 for values in alike.values())


def toml(tables: Any) -> str:
    """A spec as TOML, cut after `SPEC` characters."""
    whole = document(tables)
    rest = len(whole) - SPEC
    return whole if rest <= 0 else f"{whole[:SPEC]}…\n\n({rest:,} more characters are in spec.json)"
