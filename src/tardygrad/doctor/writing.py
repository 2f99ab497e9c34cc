"""Write a spec with a fitted fleet to a file."""

from __future__ import annotations

import json as jsons
import math

from tardygrad.fleet import Fleet, Group
from tardygrad.spec.signature import parameters, written_arguments
from tardygrad.spec.spec import Spec
from tardygrad.spec.toml import document, inline


def written_spec(spec: Spec, fleet: Fleet, *, json: bool) -> str:
    """The spec in JSON, or in TOML with a line for every group of clients."""
    fields = {name: field for name, field in parameters(Group).items() if name != "link"}  # fitted fleets have none
    groups = [written_arguments(fields, {name: getattr(group, name) for name in fields}) for group in fleet.groups]
    tables = spec.resolved()
    if json:
        written = tables | {"fleet": {"kind": "groups", "groups": groups}}
        return jsons.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    lines = "".join(f"    {inline(group)},\n" for group in groups)
    fitted = f'[fleet]\nkind = "groups"\ngroups = [\n{lines}]'
    tables["method"] = {key: math.inf if value == "inf" else value for key, value in tables["method"].items()}
    return "\n\n".join([*(document({name: tables[name]}) for name in tables if name != "fleet"), fitted]) + "\n"
