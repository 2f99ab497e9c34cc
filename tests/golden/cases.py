"""Every method as a `Setting` of the oracle, its translation for the library, and both sides' runs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

import tardygrad as tg
from tests.golden.oracle import DN, UNBOUNDED, Fadas, Law, Round, Setting, run
from tests.golden.problem import Problem, Task
from tests.golden.relative_cases import RELATIVES
from tests.golden.relatives import Halos, Relative, halos, rules

MODES = ("sync", "server", "client")

METHODS: dict[str, dict[str, Any]] = {
    "sgdclip": {},
    "clip2": {"outer": True},
    "sd-sgdclip": {"sd": True},
    "sd-clip2": {"sd": True, "outer": True},
    "dc-sgdclip": {"dc": True},
    "dc-clip2": {"dc": True, "outer": True},
    "sd-dc-clip2": {"sd": True, "dc": True, "outer": True},
    "biclip": {"local_lower": True, "sd": True},
    "biclip-outer": {"outer": True, "lower": True},
    "l2": {"l2": True, "outer": True},
    "biclip-l2": {"l2": True, "local_lower": True, "dc": True},
    "fadas": {"relative": Fadas(tau_c=1, b1=0.9, b2=0.99, eps=0.1, paper=False)},
    "fadas-paper": {"relative": Fadas(tau_c=1, b1=0.8, b2=0.95, eps=0.1, paper=True)},
    "dn": {"relative": DN(N=3, beta=0.5, c=0.25, dylu=False)},
    "dn-dylu": {"relative": DN(N=4, beta=0.5, c=0.0, dylu=True)},
    **RELATIVES,
}


class Knobs(NamedTuple):
    """What a method's switches do not say; the lower thresholds are shares of the upper ones."""

    N: int
    M: int
    K: int
    local_lr: Law
    local_clip: Law
    lr: Law
    clip: Law
    share: float


def setting(name: str, mode: str, knobs: Knobs) -> Setting:
    """A method of the table with its knobs turned."""
    N, M, K, local_lr, local_clip, lr, clip, share = knobs
    on = METHODS[name]
    outer, raised, relative = on.get("outer", False), on.get("lower", False), on.get("relative")
    M, K = on.get("M", M), on.get("K", K) + on.get("more", 0)
    if on.get("odd"):
        # An odd number of steps of ±u and ±d does not cancel if u/d is no fraction: see below.
        M, K, share = M - 1 + M % 2, K + 1 - K % 2, share / math.sqrt(2)
    elif raised or on.get("unclipped") or isinstance(relative, Fadas):
        # BiClip jumps at 0, where float32 and float64 may disagree about a sign. Clipped local steps of ±u would often
        # cancel to such zeros, so before an outer BiClip they are left unclipped; so too where FADAS divides by them.
        local_clip = UNBOUNDED
    if on.get("summed"):
        lr = Law(lr.c / (M + 1), lr.e)
    if callable(relative):
        relative = relative(N)
    return Setting(
        mode=mode, N=N, M=M, K=K, local_lr=on.get("local_lr", local_lr), local_clip=local_clip, lr=lr,
        clip=clip if outer else None,
        local_lower=Law(share * local_clip.c, local_clip.e) if on.get("local_lower") else Law(0.0),
        lower=Law(share * clip.c, clip.e) if raised else Law(0.0),
        l2=on.get("l2", False), sd=on.get("sd", False), dc=on.get("dc", False), relative=relative,
    )  # fmt: skip


def schedule(law: Law) -> float | tg.Power:
    return tg.Power(*law) if law.e else law.c


def method(m: Setting) -> tg.Method:
    """The same for the library."""
    shared: dict[str, Any] = {
        "local_lr": schedule(m.local_lr), "local_clip": schedule(m.local_clip), "lr": schedule(m.lr),
        "buffer": m.M, "local_steps": m.K, "mode": m.mode,
    }  # fmt: skip
    if isinstance(m.relative, Fadas):
        tau_c, b1, b2, eps, paper = m.relative
        rule: Any = {"lr_rule": "paper" if paper else "code", "bias_correction": not paper}
        return tg.fadas(**shared, tau_c=tau_c, beta1=b1, beta2=b2, eps=eps, **rule)
    if isinstance(m.relative, DN):
        N, beta, c, dylu = m.relative
        return tg.dn_dylu(**shared, period=N, momentum=beta, c=c, dylu=dylu)
    if isinstance(m.relative, Relative | Halos):
        return _relative(m, shared)
    both = shared | {
        "local_lower": schedule(m.local_lower), "norm": "l2" if m.l2 else "coordinate",
        "downplay": m.sd, "compensate": m.dc,
    }  # fmt: skip
    if m.clip is None:
        return tg.sgdclip(**both)
    return tg.clip2(**both, clip=schedule(m.clip), lower=schedule(m.lower))


def _relative(m: Setting, shared: dict[str, Any]) -> tg.Method:
    assert isinstance(m.relative, Relative | Halos)
    thresholds = {"local_lower": m.local_lower, "lower": m.lower, "clip": m.clip}
    given = {name: schedule(law) for name, law in thresholds.items() if law and law.c}
    if isinstance(m.relative, Halos):
        given["members"] = m.relative.members
    elif m.relative.compound:
        shared |= {"lr": m.lr.at(1)}  # the only one that it reads
    built: tg.Method = RELATIVES[m.relative.name]["library"](**shared, **given)
    return built


Seconds = list[list[float]]
"""For each client the runtimes of its jobs, from the start again when they run out."""


def library(m: Setting, problem: Problem, seconds: Seconds, T: int, seed: int) -> tuple[list[Round], list[list[int]]]:
    """The library's rounds, and the clients it gave work from each of x_0, x_1, …"""
    fleet = tg.Fleet(tuple(tg.Group("traced", 1, tg.Trace(tuple(map(float, times)))) for times in seconds))
    task, built = Task(problem), method(m)
    server = tg.serve(built, task.init(seed), clients=m.N, seed=seed)
    rounds: list[Round] = []
    given: list[list[int]] = [[] for _ in range(T + 1)]
    for event in tg.drive(server, tg.SimPool(task, built, fleet), T):
        for job in event.jobs:
            given[job.round].append(job.client)
        if isinstance(event.happened, tg.Advanced):
            done = event.happened
            assert done.round == len(rounds) + 1
            x = torch.cat([one.x for one in server.levels]).double().numpy()  # of HALoS all models
            rounds.append(Round(event.time, list(done.clients), list(done.delays), x))
    return rounds, given


def oracle(m: Setting, problem: Problem, seconds: Seconds, T: int, sampled: list[list[int]]) -> list[Round]:
    """The oracle's rounds; it is told the clients of every sync round, and nothing else."""

    def runtime(client: int, serial: int) -> float:
        return seconds[client][serial % len(seconds[client])]

    choice = (lambda t: sampled[t - 1]) if m.mode == "sync" else None
    if isinstance(m.relative, Halos):
        return halos(m, m.relative, problem.x0, runtime, problem.gradient, T)
    if isinstance(m.relative, Relative):
        return run(m, problem.x0, runtime, problem.gradient, T, choice, rules(m.relative))
    return run(m, problem.x0, runtime, problem.gradient, T, choice)


def modes(name: str) -> tuple[str, ...]:
    """Those a method is tried in."""
    found: tuple[str, ...] = METHODS[name].get("modes", MODES)
    return found
