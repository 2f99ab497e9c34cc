"""The methods of relatives.md once more: plain NumPy, float64, without tardygrad. Section numbers are its own.

Steps are written down as there; where a moment's recursion is linear, as the sum it comes to. FedAvgM, FedAdam and
FedYogi, which it only names, are those of their papers (Hsu et al. 2019; Reddi et al. 2021, Algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.golden.oracle import DN, Array, Gradient, Law, Round, Rules, Runtime, Sent, Setting, averaged, clip, dn


class Adam(NamedTuple):
    """The client's steps of Adam² (2.1), DiLoCo and HALoS (2.7): Adam with its bias corrected, and decoupled decay."""

    b1: float
    b2: float
    eps: float
    decay: float
    keep: bool  # the moments from one job of a client to the next


class Weight(NamedTuple):
    """What an update that missed s rounds counts: 2.4, 2.5 and the table in 2.9."""

    kind: str  # poly, hinge, fedlab, root
    a: float = 0.5
    b: float = 0.0
    fresh: int = 0
    average: float = 0.0

    def of(self, s: int) -> float:
        s += self.fresh
        if self.kind == "poly":
            return (s + 1) ** -self.a / (self.average + 1) ** -self.a
        if self.kind == "root":
            return 1 / (1 + math.sqrt(s))
        if s <= self.b:
            return 1.0
        return 1 / (self.a * (s - self.b) + 1) if self.kind == "hinge" else 1 / (self.a * ((s - self.b) + 1))


class DCASGD(NamedTuple):
    """2.6."""

    lam0: float
    m: float = 0.95
    eps: float = 1e-7
    adaptive: bool = False  # -a
    steps: bool = False  # g² of K steps is the sum of theirs, not that of −δ/η_ℓ


class Momentum(NamedTuple):
    """FedAvgM's outer step, and DiLoCo's."""

    beta: float
    nesterov: bool = False


class Adaptive(NamedTuple):
    """The outer steps of 2.1, FedAdam's and FedYogi's."""

    kind: str  # adagrad, rmsprop, adam, yogi
    b1: float
    b2: float
    tau: float
    v0: float = 0.0
    unbiased: bool = False


class Dylu(NamedTuple):
    """2.3, and its variants in 2.9."""

    up: bool = False
    least: int = 1
    percentile: float = 100.0


class Relative(NamedTuple):
    """A method with one server; what is left out is FedAvg's."""

    name: str
    adam: Adam | None = None
    rho: float = 0.0
    weight: Weight | None = None
    over: str = "M"  # or the sum of the weights, or one
    model: bool = False  # towards y, not along y − x_b
    compound: bool = False
    dcasgd: DCASGD | None = None
    outer: Momentum | Adaptive | DN | None = None  # None: the average, or a BiClip where the setting has thresholds
    dylu: Dylu | None = None


class Halos(NamedTuple):
    """2.7; the global server's rate is the setting's."""

    name: str
    members: tuple[tuple[int, ...], ...]  # the workers of each LPS
    client: Relative
    lps: DN
    lps_lr: Law
    gps: DN
    every: int
    alpha: float
    exchange: float  # seconds, one way


Moments = tuple[int, Array, Array]


# 2.1, 2.5, 2.7: the client, from the gradient at (k, y) to y_K, the sum of (η_ℓ c_k)², and Adam's moments.
def local_step(
    m: Setting, r: Relative, kept: Moments | None, gradient: Callable[[int, Array], Array], s: int, x_b: Array, K: int
) -> tuple[Array, Array, Moments]:
    eta, u, d = m.local_lr.at(s), m.local_clip.at(s), m.local_lower.at(s)
    y, A, zero = x_b.copy(), np.zeros_like(x_b), np.zeros_like(x_b)
    n, first, second = kept or (0, zero, zero)
    for k in range(K):
        c = clip(gradient(k, y) + r.rho * (y - x_b), u, d, m.l2)
        A = A + (eta * c) ** 2
        if r.adam is None:
            y = y - eta * c
            continue
        n, (b1, b2, eps, decay, _) = n + 1, r.adam
        first, second = b1 * first + (1 - b1) * c, b2 * second + (1 - b2) * c * c
        y = y - eta * decay * y - eta * (first / (1 - b1**n)) / (np.sqrt(second / (1 - b2**n)) + eps)
    return y, A, (n, first, second)


# 2.6: −η_ℓ (g + λ g² (w − w_bak)), and the worker's mean square after it.
def compensated(d: DCASGD, eta: float, one: Sent, drift: Array, MS: Array) -> tuple[Array, Array]:
    g = -one.delta / eta
    gg = one.A / eta**2 if d.steps else g * g
    MS = d.m * MS + (1 - d.m) * gg
    lam = d.lam0 / np.sqrt(MS + d.eps) if d.adaptive else d.lam0
    return -eta * (g + lam * gg * drift), MS


# 2.1, 2.3: the outer step on the means of rounds 1 … t.
def outer(m: Setting, r: Relative, means: list[Array]) -> Array:
    t, mean, o = len(means), means[-1], r.outer
    eta = m.lr.at(t)
    if o is None:
        return eta * (mean if m.clip is None else clip(mean, m.clip.at(t), m.lower.at(t), False))
    if isinstance(o, DN):
        return eta * dn(o, means)
    if isinstance(o, Momentum):
        total = sum(o.beta**age * one for age, one in enumerate(reversed(means)))
        return eta * (mean + o.beta * total if o.nesterov else total)
    squares = [one * one for one in means]
    v = np.full_like(mean, o.v0)
    if o.kind == "adagrad":
        v = v + sum(squares)
    elif o.kind == "yogi":
        for square in squares:
            v = v - (1 - o.b2) * square * np.sign(v - square)
    else:
        v = o.b2**t * v + averaged(o.b2, squares)
    first = averaged(o.b1, means)
    if o.unbiased:
        first, v = first / (1 - o.b1**t), v / (1 - o.b2**t)
    return eta * first / (np.sqrt(v) + o.tau)


# 2.3: H_w. The reference is the least speed that so many per cent of the workers do not exceed.
def paced(d: Dylu, K: int, i: int, speeds: dict[int, float]) -> int:
    if i not in speeds:
        return K
    all_ = list(speeds.values())
    reference = min(v for v in all_ if 100 * sum(w <= v for w in all_) >= d.percentile * len(all_))
    exact = round(K * speeds[i] / reference, 9)
    return min(K, max(d.least, math.ceil(exact) if d.up else math.floor(exact)))


def rules(r: Relative) -> Rules:
    """One run's rules; what is remembered of a client is here."""
    moments: dict[int, Moments] = {}
    MS: dict[int, Array] = {}
    counted: list[float] = []  # the weights of all updates so far

    def client(m: Setting, gradient: Gradient, i: int, serial: int, s: int, x_b: Array, K: int) -> tuple[Array, Array]:
        kept = moments.get(i) if r.adam and r.adam.keep else None
        y, A, moments[i] = local_step(m, r, kept, lambda k, y: gradient(i, serial, k, y), s, x_b, K)
        return y - x_b, A

    def server(m: Setting, xs: list[Array], means: list[Array], buffer: Sequence[Sent]) -> tuple[Array, list[int]]:
        t, x = len(xs), xs[-1]
        delays = [t - one.s for one in buffer]
        weights = [r.weight.of(p - 1) if r.weight else 1.0 for p in delays]
        counted.extend(weights)
        total = np.zeros_like(x)
        for one, weight in zip(buffer, weights, strict=True):
            x_b, along = xs[one.s], one.delta
            if r.model:
                along = (x_b + one.delta) - x
            if r.dcasgd:
                before = MS.get(one.client, np.zeros_like(x))
                along, MS[one.client] = compensated(r.dcasgd, m.local_lr.at(one.s), one, x - x_b, before)
            total = total + (along if r.compound else weight * along)
        means.append(total / {"M": m.M, "weights": sum(weights), "one": 1}[r.over])
        if r.compound:
            return x + m.lr.at(1) * math.prod(counted) * means[-1], delays
        return x + outer(m, r, means), delays

    def share(m: Setting, i: int, speeds: dict[int, float]) -> int:
        return paced(r.dylu, m.K, i, speeds) if r.dylu else m.K

    return Rules(client, server, share)


class RegionMessage(NamedTuple):
    """Between an LPS and the GPS; at equal times letters come before workers, by LPS and then as they were written."""

    due: float
    lps: int
    number: int
    up: bool
    vector: Array


# 2.7, one event at a time. x of a round is the global model, and behind it those of the LPSs.
def halos(m: Setting, h: Halos, x0: Array, runtime: Runtime, gradient: Gradient, T: int) -> list[Round]:
    R = len(h.members)
    home = {i: r for r, members in enumerate(h.members) for i in members}
    x = np.asarray(x0, dtype=np.float64)
    theta, ref = [x] * R, [x] * R
    version, merged = [0] * R, [0] * R
    reports: list[Array] = []
    arrived: list[list[Array]] = [[] for _ in range(R)]
    speeds: list[dict[int, float]] = [{} for _ in range(R)]
    moments: dict[int, Moments] = {}
    serials = [0] * m.N
    away: list[Sent] = []
    letters: list[RegionMessage] = []
    rounds: list[Round] = []
    written = 0

    def start(i: int, now: float) -> None:
        r, serial = home[i], serials[i]
        serials[i] += 1
        K = paced(h.client.dylu, m.K, i, speeds[r]) if h.client.dylu else m.K
        kept = moments.get(i) if h.client.adam and h.client.adam.keep else None
        y, A, moments[i] = local_step(
            m, h.client, kept, lambda k, y: gradient(i, serial, k, y), version[r], theta[r], K
        )
        due = now + runtime(i, serial) * (K / m.K)
        away.append(Sent(due, i, serial, version[r], y - theta[r], A, now, K))

    def post(due: float, r: int, up: bool, vector: Array) -> None:
        nonlocal written
        written += 1
        letters.append(RegionMessage(due, r, written, up, vector))

    def deliver(now: float) -> None:
        nonlocal x
        while letters and (letter := min(letters, key=lambda one: one[:3])).due <= now:
            letters.remove(letter)
            r = letter.lps
            if letter.up:
                reports.append(letter.vector)
                x = x + m.lr.at(len(reports)) * dn(h.gps, reports)
                post(letter.due + h.exchange, r, False, x)
            else:
                theta[r] = (1 - h.alpha) * theta[r] + h.alpha * letter.vector
                ref[r], merged[r] = theta[r], version[r]

    for i in range(m.N):
        start(i, 0.0)
    while len(rounds) < T:
        arrival = min(away, key=lambda one: (one.time, one.client, one.serial))
        deliver(arrival.time)
        away.remove(arrival)
        i, now = arrival.client, arrival.time
        r = home[i]
        if now > arrival.began:
            v = arrival.K / (now - arrival.began)
            speeds[r][i] = (speeds[r].get(i, v) + v) / 2
        arrived[r].append(arrival.delta)
        version[r] += 1
        theta[r] = theta[r] + h.lps_lr.at(version[r]) * dn(h.lps, arrived[r])
        if version[r] == merged[r] + h.every:
            post(now + h.exchange, r, True, theta[r] - ref[r])
        delay = version[r] - arrival.s
        start(i, now)
        deliver(now)
        rounds.append(Round(now, [i], [delay], np.concatenate([x, *theta])))
    return rounds
