"""A spec as text: to be read, and to be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tardygrad.spec.toml import document

SPEC = 20_000  # characters of a spec that are shown
WORDS = tuple('"tfn')  # how values begin that are no numbers


def flat(tables: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a spec, as in an override, with its value.

    >>> dict(flat({"run": {"rounds": 3, "seed": 0}}))
    {'run.rounds': '3', 'run.seed': '0'}
    """
    if not isinstance(tables, dict):
        yield before, json.dumps(tables, ensure_ascii=False)[:400]
        return
    for key, value in tables.items():
        yield from flat(value, f"{before}.{key}" if before else str(key))


def apart(specs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """What sets each spec apart from the others, words before numbers; of tables of different kinds, only the kind.

    >>> weights = ({"kind": "hinge", "slope": 10.0}, {"kind": "polynomial", "exponent": 0.5})
    >>> apart([dict(flat({"method": {"lr": lr, "weight": weight}})) for lr, weight in enumerate(weights)])
    [['weight.kind=hinge', 'lr=0'], ['weight.kind=polynomial', 'lr=1']]
    """
    keys = list(dict.fromkeys(key for spec in specs for key in spec))
    within = Counter(key.partition(".")[2] for key in keys)
    telling = {key: _name(key, within) for key in keys if key != "run.seed" and _differs(key, specs)}
    found = []
    for spec in specs:
        own = sorted((key for key in telling if key in spec), key=lambda key: spec[key][:1] not in WORDS)
        found.append([telling[key] + "=" + spec[key].strip('"') for key in own])
    return found


def _name(key: str, within: Counter[str]) -> str:
    """The key without its table, where no other table has the same."""
    rest = key.partition(".")[2]
    return rest if rest and within[rest] == 1 else key


def _differs(key: str, specs: Sequence[Mapping[str, str]]) -> bool:
    """Whether a key's values differ between specs that have it in tables of the same kinds."""
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
