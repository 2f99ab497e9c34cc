"""Reading checkpoints of format 3, which identify tensors by names such as `0.sum`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from tardygrad.core.hierarchy import RegionMessage
from tardygrad.core.messages import Job, ModuleBuffers, Taken, Update
from tardygrad.core.method import Method
from tardygrad.core.transforms import strip_prefix
from tardygrad.engines.contract import Pending

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


def run_state(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """The state of the run itself: samples, rows that wait for scores, and their models."""
    samples = strip_prefix(tensors, "tail.")
    unscored = {t: (tensors[name], _module_buffers(tensors, name)) for t, name in facts["unscored"]}
    return {"tail": [samples[str(i)] for i in range(len(samples))], "rows": facts["rows"], "unscored": unscored}


def server_state(tensors: Tensors, facts: Facts, method: Method) -> tuple[dict[str, Any], Pending]:
    """What `snapshot` of a server and `pending` of its engine would have returned."""
    levels = [_level(tensors, level, str(i)) for i, level in enumerate(facts["servers"])]
    state = {"levels": levels, **_regions(tensors, facts["regions"])} if facts["regions"] else levels[0]
    members = method.regions.members(facts["clients"]) if method.regions else [range(facts["clients"])]
    states = {
        clients[local]: client_state
        for clients, level in zip(members, levels[-len(members) :], strict=True)
        for local, client_state in level["client_states"].items()
    }
    pending, seed = facts["pending"], facts["seed"]
    jobs = [
        Job(client, serial, s, tensors[x], steps, epochs, seed, _module_buffers(tensors, x), states.get(client))
        for client, serial, s, x, steps, epochs in pending["jobs"]
    ]
    done = [_update(tensors, f"done.{i}", update) for i, update in enumerate(pending["done"])]
    if method.keep:
        done = [update._replace(state=strip_prefix(tensors, f"done.{i}.state.")) for i, update in enumerate(done)]
    return state, Pending(pending["now"], jobs, [tuple(due) for due in pending["due"]], tuple(done))


def _level(tensors: Tensors, facts: Facts, name: str) -> dict[str, Any]:
    buffer = enumerate(facts["buffer"])
    return {
        "round": facts["round"], "x": tensors[facts["x"]], "module_buffers": _module_buffers(tensors, facts["x"]),
        "sum": tensors.get(f"{name}.sum"), "outer": strip_prefix(tensors, f"{name}.state."),
        "buffer": [Taken(_update(tensors, f"{name}.buffer.{i}", update), *rest) for i, (update, *rest) in buffer],
        "client_states": {client: strip_prefix(tensors, f"{name}.kept.{client}.") for client in facts["kept"]},
        "roster": {key: facts[key] for key in ("idle", "waiting", "serials", "sent")} | {"jobs": dict(facts["jobs"])},
        "speeds": {"of": dict(facts["speeds"]), "given": {client: (*given,) for client, *given in facts["given"]}},
    }  # fmt: skip


def _regions(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    transit = [
        (due, r, number, RegionMessage(due, r, up, tensors[name], _module_buffers(tensors, name)))
        for due, r, number, up, name in facts["letters"]
    ]
    references = [tensors[name] for name in facts["starts"]]
    return {"references": references, "synced": facts["heard"], "transit": transit, "posted": facts["written"]}


def _module_buffers(tensors: Tensors, name: str) -> ModuleBuffers | None:
    if f"{name}.floats" not in tensors:
        return None
    return ModuleBuffers(tensors[f"{name}.floats"], tensors[f"{name}.ints"])


def _update(tensors: Tensors, name: str, facts: list[Any]) -> Update:
    client, serial, s, steps, loss, clipped = facts
    vectors = tensors[f"{name}.delta"], tensors.get(f"{name}.curvature"), _module_buffers(tensors, f"{name}.delta")
    return Update(client, serial, s, *vectors, steps, math.nan if loss is None else loss, clipped)
