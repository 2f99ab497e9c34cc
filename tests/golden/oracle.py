"""The whole process of algorithms.md once more: plain NumPy, float64, one event at a time, without tardygrad.

It is written from the specification alone and for reading, not for speed. Section numbers are those of algorithms.md,
and for FADAS and DN+DyLU those of relatives.md; its other methods are in relatives.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Runtime = Callable[[int, int], float]
"""(client, serial) to seconds."""

Gradient = Callable[[int, int, int, Array], Array]
"""(client, serial, k, x) to the stochastic gradient g at x; k counts from 0."""


class Law(NamedTuple):
    """c · t^e with t starting at 1; e = 0 is a constant."""

    c: float
    e: float = 0.0

    def at(self, t: int) -> float:
        return self.c * max(t, 1) ** self.e


OFF = Law(0.0)  # a lower threshold of 0 switches BiClip off
UNBOUNDED = Law(math.inf)


class Fadas(NamedTuple):
    """Section 2.2 of relatives.md, in its symbols."""

    tau_c: float
    b1: float
    b2: float
    eps: float
    paper: bool  # the text's step and rate, not the code's


class DN(NamedTuple):
    """Section 2.3 of relatives.md, in its symbols."""

    N: int
    beta: float
    c: float
    dylu: bool


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One method, in the paper's symbols."""

    mode: str  # sync, server, client
    N: int
    M: int
    K: int
    local_lr: Law  # η_ℓ
    local_clip: Law = UNBOUNDED  # u
    local_lower: Law = OFF  # d
    lr: Law  # η
    clip: Law | None = None  # ũ; None is the SGD outer step
    lower: Law = OFF
    l2: bool = False
    sd: bool = False
    dc: bool = False
    relative: tuple[object, ...] | None = (
        None  # Fadas, DN, or one of relatives.py: whose steps it has, if not the paper's
    )


class Round(NamedTuple):
    """One global round: when, who (in order of arrival), how late, and x_t."""

    time: float
    clients: list[int]
    delays: list[int]
    x: Array


class Sent(NamedTuple):
    """An update on its way, or in the buffer."""

    time: float
    client: int
    serial: int
    s: int
    delta: Array
    A: Array
    began: float
    K: int


# Section 1: Clip(u, v)_j = clamp(v_j, −u, u); BiClip raises 0 < |v_j| < d to d; the L2 form treats the length so.
def clip(v: Array, u: float, d: float, l2: bool) -> Array:
    if l2:
        length = math.sqrt(math.fsum(float(a) * float(a) for a in v))
        if length > u:
            return v * (u / length)
        if 0 < length < d:
            return v * (d / length)
        return v
    out = np.empty_like(v)
    for j, a in enumerate(v):
        if 0 < abs(a) < d:
            a = math.copysign(d, a)
        out[j] = max(-u, min(u, a))
    return out


# Section 2: the client.
def client(m: Setting, gradient: Gradient, i: int, serial: int, s: int, x_s: Array, K: int) -> tuple[Array, Array]:
    eta, u, d = m.local_lr.at(s), m.local_clip.at(s), m.local_lower.at(s)
    x, A = x_s.copy(), np.zeros_like(x_s)
    for k in range(K):
        c = clip(gradient(i, serial, k, x), u, d, m.l2)
        x = x - eta * c
        A = A + eta**2 * (c * c)
    return x - x_s, A


# Section 3: the server's round t; `xs` holds x_0 … x_{t−1}, `means` the means of rounds 1 … t−1 and then of t too.
def server(m: Setting, xs: list[Array], means: list[Array], buffer: Sequence[Sent]) -> tuple[Array, list[int]]:
    t = len(xs)
    contributions, delays = [], []
    for one in buffer:
        p = t - one.s
        drift = xs[t - 1] - xs[one.s]
        contribution = one.delta - one.A * drift if m.dc else one.delta
        contributions.append(contribution / p if m.sd else contribution)
        delays.append(p)
    mean = sum(contributions) / m.M
    means.append(mean)
    if isinstance(m.relative, Fadas):
        return xs[t - 1] + fadas(m.relative, m.lr.at(t), means, max(delays) - 1), delays
    if isinstance(m.relative, DN):
        return xs[t - 1] + m.lr.at(t) * dn(m.relative, means), delays
    if m.clip is not None:
        mean = clip(mean, m.clip.at(t), m.lower.at(t), m.l2)
    return xs[t - 1] + m.lr.at(t) * mean, delays


# Relatives, 2.2. Both moments as the sums that their recursions come to.
def fadas(f: Fadas, eta: float, means: list[Array], smax: int) -> Array:
    t = len(means)
    m = averaged(f.b1, means)
    squares = [mean * mean for mean in means]
    vh = np.max([averaged(f.b2, squares[:j]) for j in range(1, t + 1)], axis=0)
    if f.paper:
        return (eta if smax <= f.tau_c else min(eta, 1 / smax)) * m / (np.sqrt(vh) + f.eps)
    eta = eta if smax <= f.tau_c else eta / smax
    return eta / (1 - f.b1**t) * m / (np.sqrt(vh) / np.sqrt(1 - f.b2**t) + f.eps)


# b · average + (1 − b) · value for one value after the other, from 0.
def averaged(b: float, values: list[Array]) -> Array:
    total = np.zeros_like(values[0])
    for age, value in enumerate(reversed(values)):
        total = total + (1 - b) * b**age * value
    return total


# Relatives, 2.3, with g = −mean. The momentum as the sum over the periods that are complete.
def dn(d: DN, means: list[Array]) -> Array:
    t = len(means)
    complete = t // d.N
    m = np.zeros_like(means[0])
    for period in range(complete):
        m = m + d.beta ** (complete - 1 - period) * sum(means[period * d.N : (period + 1) * d.N]) / d.N
    share = 1 - d.c * d.N + d.c if t % d.N == 0 else d.c
    return share * d.beta * m + means[-1] / d.N


# Relatives, 2.3: DyLU. What is a whole number but for rounding is one.
def dylu(K: int, i: int, speeds: dict[int, float]) -> int:
    return max(1, math.floor(round(K * speeds[i] / max(speeds.values()), 9))) if i in speeds else K


def share(m: Setting, i: int, speeds: dict[int, float]) -> int:
    return dylu(m.K, i, speeds) if isinstance(m.relative, DN) and m.relative.dylu else m.K


class Rules(NamedTuple):
    """What clients and server do, and how much a client is given to do."""

    client: Callable[[Setting, Gradient, int, int, int, Array, int], tuple[Array, Array]] = client
    server: Callable[[Setting, list[Array], list[Array], Sequence[Sent]], tuple[Array, list[int]]] = server
    share: Callable[[Setting, int, dict[int, float]], int] = share


# Section 4: who works when. Events in the order (time, client, serial).
def run(
    m: Setting,
    x0: Array,
    runtime: Runtime,
    gradient: Gradient,
    T: int,
    sampled: Callable[[int], Sequence[int]] | None,
    rules: Rules = Rules(),
) -> list[Round]:
    """Rounds 1 … T. `sampled` names the M clients of each round t in sync mode, and is None in the others."""
    xs, rounds = [np.asarray(x0, dtype=np.float64)], []
    serials = [0] * m.N
    away: list[Sent] = []
    buffer: list[Sent] = []
    means: list[Array] = []
    speeds: dict[int, float] = {}

    def start(i: int, now: float) -> None:
        s, serial = len(xs) - 1, serials[i]
        serials[i] += 1
        K = rules.share(m, i, speeds)
        due = now + runtime(i, serial) * (K / m.K)
        away.append(Sent(due, i, serial, s, *rules.client(m, gradient, i, serial, s, xs[s], K), now, K))

    def called() -> list[int]:
        return list(sampled(len(xs))) if sampled else list(range(m.N))

    for i in called():
        start(i, 0.0)
    while len(rounds) < T:
        arrival = min(away, key=lambda one: (one.time, one.client, one.serial))
        away = [one for one in away if one is not arrival]
        buffer.append(arrival)
        if arrival.time > arrival.began:
            v = arrival.K / (arrival.time - arrival.began)
            speeds[arrival.client] = (speeds.get(arrival.client, v) + v) / 2
        full = len(buffer) == m.M
        reported = [one.client for one in buffer]
        if full:
            x, delays = rules.server(m, xs, means, buffer)
            xs.append(x)
            rounds.append(Round(arrival.time, reported, delays, x))
            buffer = []
        if m.mode == "client":
            start(arrival.client, arrival.time)
        elif full and len(rounds) < T:
            for i in reported if m.mode == "server" else called():
                start(i, arrival.time)
    return rounds
