"""Fused kernels: the same bits as the plain lines, for every form, size and number of threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import tardygrad as tg
from tardygrad.core import kernels
from tardygrad.core.algorithm import finish, fold, local_step, weighted_delta
from tardygrad.core.kernels import ClipAndRate, Contribution, Outcome
from tardygrad.core.schedules import Constant, Cosine, Power
from tardygrad.core.transforms import Chain, Clip, Scale, State, Step, Transform
from tardygrad.engines.wire import BLOCK, Packed, Wire, send, unpack

fused = pytest.importorskip("tardygrad.core.fused", reason="needs numba: pip install -c constraints.txt -e '.[fast]'")

SIZES = [1, 7, fused.BLOCK - 1, fused.BLOCK, 3 * fused.BLOCK + 5]
STEPS = {
    "rate": Scale(Power(0.3, -0.5)),
    "clip": Chain(Clip(Constant(0.7)), Scale(Power(0.3, -0.5))),
    "clip alone": Clip(Constant(0.7)),
    "biclip": Chain(Clip(Constant(0.7), Constant(0.2)), Scale(Constant(0.1))),
    "crossed": Chain(Clip(Power(1.0, -1.0), Constant(0.5)), Scale(Constant(0.1))),
    "infinite": Chain(Clip(Constant(math.inf)), Scale(Constant(0.1))),
    "zero": Chain(Clip(Constant(0.0)), Scale(Constant(0.1))),
    "overflowing": Chain(Clip(Constant(1e300)), Scale(Cosine(0.1, 9))),
    "overflowing below": Chain(Clip(Constant(math.inf), Constant(1e300)), Scale(Constant(0.0))),
}
SPECIAL = [0.0, -0.0, 0.7, -0.7, 1 / 3, 1e-42, -1e-45, 1.1754944e-38, 3.4e38, math.inf, -math.inf, math.nan]
SENT: dict[str, Callable[[Tensor], Tensor]] = {  # of heavy-tailed numbers v
    "heavy": lambda v: v,
    "fine": lambda v: v.sign() * 2.0 ** (-3 * v.abs()),  # at most 1: float16's denormals, and what is below them
    "ties of int8": lambda v: (v.clamp(-1, 1) * 127).trunc() + (v.abs() < 1) * v.sign() / 2,
    "ties of float16": lambda v: _brief(v, 12).where(v.abs() < 1, 1.0),
    "ties of bfloat16": lambda v: _brief(v, 15),
    "tiny": lambda v: v * 1e-37,
    "denormal": lambda v: v * 1e-43,
    "huge": lambda v: v.clamp(-1, 1) * 3.4028235e38,
    "too large for bfloat16": lambda v: v.clamp(-1, 1) * (2.0**128 - 2.0**119),
    "almost too large": lambda v: v.clamp(-1, 1) * (2.0**128 - 2.0**119 - 2.0**104),
    "zero": lambda v: v * 0.0,
    "NaN": lambda v: v.where(v.abs() < 4, torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)),
    "brief NaN": lambda v: v.where(v.abs() < 4, torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)),
    "infinite": lambda v: v.where(v < 4, math.inf).where(v > -4, -math.inf),
}
WEIGHTS = [1.0, 1 / 3, 0.0, -1.0, 1e-30, 1e300, math.inf]


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MIN_LENGTH", 1)


@pytest.fixture
def plainly() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MIN_LENGTH", math.inf)
        yield patch


def vector(n: int, seed: int, special: bool = True) -> Tensor:
    """Numbers of all sizes, with zeros of both signs, thresholds, subnormals and what is not finite among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(1.2, n).astype(np.float32)
    if special and n > 6:
        places = rng.permutation(n)[:7]
        values[places] = [0.0, -0.0, 0.7, -0.7, 1e-42, np.inf, np.nan]
    return torch.from_numpy(values)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, whatever a NaN carries."""
    nan = a.isnan() & b.isnan()
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | nan).all())


def both(monkeypatch: pytest.MonkeyPatch, function):  # type: ignore[no-untyped-def]
    """A function's results from the kernels and from plain torch."""
    assert kernels.fits(torch.zeros(1))
    quick = function()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "MIN_LENGTH", math.inf)
        assert not kernels.fits(torch.zeros(1))
        return quick, function()


@pytest.mark.parametrize("name", STEPS)
def test_a_local_step_has_the_same_bits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for n, curved in itertools.product(SIZES, (False, True)):

        def run(n: int = n, curved: bool = curved) -> tuple[Tensor, Tensor, float]:
            x, curvature = vector(n, 1), vector(n, 2).abs()
            state = local_step(x, vector(n, 3), curvature if curved else None, STEPS[name], {}, Step(5))
            return x, curvature, float(state.get("clipped", 0.0))

        (x, curvature, share), (x2, curvature2, share2) = both(monkeypatch, run)
        assert same(x, x2)
        assert same(curvature, curvature2)
        if n < 7 or name != "rate":  # a step that clips nothing counts nothing, not even what is not a number
            assert share == pytest.approx(share2, rel=1e-5)


def made(x: Tensor, late: list[Contribution], outer: Transform, step: Step) -> tuple[Outcome, State]:
    """A round, as a server makes it."""
    total = None
    for one in late:
        total = fold(total, one, x)
    assert total is not None
    return finish(x, total, len(late), outer, {}, step)


def crossed(vectors: int) -> list[Tensor]:
    """Vectors in whose coordinates every combination of special numbers occurs."""
    return list(torch.cartesian_prod(*[torch.tensor(SPECIAL)] * vectors).T.contiguous())


def parcel(n: int, updates: int, compensated: bool, special: bool) -> list[Contribution]:
    """Updates of all sizes, of which every third counts fully."""
    more = (lambda i: (vector(n, i + 1, special), vector(n, i + 2, special))) if compensated else lambda i: ()
    return [Contribution(vector(n, 10 * i, special), 1 / (i % 3 + 1), *more(10 * i)) for i in range(updates)]


def folded(x: Tensor, late: list[Contribution], over: float, form: ClipAndRate) -> Outcome:
    total = None
    for one in late:
        total = kernels.fold(total, one, x)
    assert total is not None
    return kernels.finish(x, total, over, form)


def spelled_out(x: Tensor, late: list[Contribution], over: float, transform: Transform) -> Outcome:
    """The same in plain torch; norms in float64, as torch's own sum of a long float32 vector is some digits off."""
    total = torch.zeros_like(x)
    for one in late:
        total += weighted_delta(one, x)
    total /= over
    move, state = transform.update(total, {}, Step(5))
    norms = (float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in (total, move))
    return Outcome(x + move, *norms, float(state.get("clipped", 0.0)))


def form_of(transform: Transform) -> ClipAndRate:
    form = transform.form(5)
    assert form is not None
    return form


@pytest.mark.parametrize("compensated", [False, True])
def test_a_fold_has_the_same_bits_whatever_the_numbers(compensated: bool) -> None:
    total, delta, *more = crossed(5 if compensated else 2)
    x = more[2] if compensated else total
    for weight in WEIGHTS:
        late = Contribution(delta, weight, *more[:2])
        plain = total + weighted_delta(late, x)
        first = torch.zeros_like(x) + weighted_delta(late, x)
        assert same(kernels.fold(None, late, x), first)
        mine = total.clone()
        assert kernels.fold(mine, late, x) is mine
        assert same(mine, plain)


@pytest.mark.parametrize("name", STEPS)
def test_a_finish_has_the_same_bits_whatever_the_numbers(name: str) -> None:
    x, total = crossed(2)
    for over in (1.0, 3.0, 4, 1e-300, 1e300):
        made = kernels.finish(x, total, over, form_of(STEPS[name]))
        assert same(made.x, x + STEPS[name].update(total / over, {}, Step(5))[0])


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize(("updates", "n"), [(1, 7), (2, 3 * fused.BLOCK + 5), (7, fused.BLOCK)])
def test_folds_and_a_finish_are_the_plain_loop(updates: int, n: int, compensated: bool, special: bool) -> None:
    x, late = vector(n, 5, special), parcel(n, updates, compensated, special)
    for transform, over in itertools.product(STEPS.values(), (updates, sum(one.weight for one in late), 1.0)):
        made, wanted = folded(x, late, over, form_of(transform)), spelled_out(x, late, over, transform)
        assert same(made.x, wanted.x)
        if not special:
            assert made[1:] == pytest.approx(wanted[1:], rel=1e-5)


@pytest.mark.parametrize("compensated", [False, True])
def test_threads_change_nothing_in_a_fold(monkeypatch: pytest.MonkeyPatch, compensated: bool) -> None:
    n, transform = 300_001, STEPS["biclip"]
    x, late = vector(n, 5, special=False), parcel(n, 3, compensated, special=False)
    wanted = spelled_out(x, late, 3, transform)
    monkeypatch.setattr(kernels, "_PER_THREAD", 1000)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            made = folded(x, late, 3, form_of(transform))
            assert same(made.x, wanted.x)
            assert made[1:] == pytest.approx(wanted[1:], rel=1e-5)
    finally:
        torch.set_num_threads(before)


def test_a_first_fold_reads_nothing_of_its_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, late = vector(5000, 5, special=False), parcel(5000, 2, True, special=False)
    monkeypatch.setattr(kernels, "uninitialized_like", lambda x: torch.full_like(x, math.nan))
    for one in (*late, Contribution(late[0].delta.clone().requires_grad_(), 0.5)):
        with torch.no_grad():
            wanted = weighted_delta(one, x)
        assert torch.equal(kernels.fold(None, one, x), wanted)


def test_a_finish_changes_only_what_it_is_given_to_write_into() -> None:
    x, total = vector(5000, 5, special=False), vector(5000, 6, special=False)
    kept, out = (x.clone(), total.clone()), torch.empty(5000)
    fresh, made = kernels.finish(x, total, 3, ClipAndRate(0.7)), kernels.finish(x, total, 3, ClipAndRate(0.7), out)
    assert made.x is out
    assert torch.equal(fresh.x, out)
    assert torch.equal(x, kept[0])
    assert torch.equal(total, kept[1])
    assert torch.equal(kernels.finish(x, total, 3, ClipAndRate(0.7), total).x, out)


def _brief(v: Tensor, bits: int) -> Tensor:
    """Without the last bits but the first of these."""
    return ((v.contiguous().view(torch.int32) >> bits << bits) | 1 << bits).view(torch.float32)


Sent = tuple[Packed, Packed, Tensor | None, Tensor, Tensor]


def sent(v: Tensor, error: Tensor | None, wire: Wire) -> Sent:
    (packed, _), (fed, left) = send(v, None, wire), send(v, error, wire)
    return packed, fed, left, unpack(packed), unpack(fed)


def assert_the_same(a: Sent, b: Sent) -> None:
    """Bit for bit, whatever a NaN carries and whatever numbers make one."""
    for one, two, out, wanted in zip(a[:2], b[:2], a[3:], b[3:], strict=True):
        assert same(out, wanted)
        assert (one.scales is None and two.scales is None) or same(one.scales, two.scales)
        raw, raw2 = (p.numbers.view(torch.int8).view(len(out), -1) for p in (one, two))
        assert torch.equal(raw[out.isfinite()], raw2[out.isfinite()])
    assert a[2] is b[2] or (a[2] is not None and b[2] is not None and same(a[2], b[2]))


@pytest.mark.parametrize("kind", SENT)
def test_what_is_sent_has_the_same_bits(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7):
        v = SENT[kind](vector(n, 3, special=False))
        v[torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 10]] *= -0.0
        for error in (None, v.roll(1) / 100, -v):
            assert_the_same(*both(monkeypatch, lambda v=v, e=error: sent(v, e, "int8")))


@pytest.mark.parametrize("wire", ["int8"])
def test_every_special_number_is_sent_with_the_same_bits(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    """Each pair of them, in a block of its own."""
    for v, error in zip(*(one[:, None] * torch.ones(9) for one in crossed(2)), strict=True):
        v[:7] = torch.tensor([0.3, -0.1, 1e-3, 1e-20, -1e-40, 0.0, -0.0])
        assert_the_same(*both(monkeypatch, lambda v=v, e=error: sent(v, e, wire)))


@pytest.mark.parametrize("wire", ["int8"])
def test_threads_change_nothing_in_what_is_sent(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    v, error = vector(300_001, 1, special=False), vector(300_001, 2, special=False)
    monkeypatch.setattr(kernels, "_PER_THREAD", 1000)
    before, bad = torch.get_num_threads(), v.clone()
    bad[-1] = math.nan
    try:
        for one in (v, bad):
            torch.set_num_threads(1)
            wanted = sent(one, error, wire)
            torch.set_num_threads(3)
            assert_the_same(sent(one, error, wire), wanted)
    finally:
        torch.set_num_threads(before)


def test_threads_change_nothing_in_a_local_step(monkeypatch: pytest.MonkeyPatch) -> None:
    n, form = 300_000, ClipAndRate(0.7, 0.0, 0.1)
    late = [Contribution(vector(n, i, special=False)) for i in range(4)]
    monkeypatch.setattr(kernels, "_PER_THREAD", 1000)
    walked = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            x, curvature = vector(n, 1, special=False), torch.zeros(n)
            share = kernels.local_step(x, late[1].delta, curvature, form)
            walked.append((x, curvature, share))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*walked, strict=True))


@pytest.mark.parametrize(
    "transform",
    [
        Clip(Constant(1.0), norm="l2"),
        Chain(Scale(Constant(0.1)), Clip(Constant(1.0))),
        Chain(Scale(Constant(0.1)), Scale(Constant(0.1))),
        Chain(Clip(Constant(1.0)), Clip(Constant(0.5)), Scale(Constant(0.1))),
        Chain(Clip(Constant(1.0)), Clip(Constant(0.5))),
        Chain(Clip(Constant(1.0), norm="l2"), Scale(Constant(0.1))),
        Transform(lambda x: {}, lambda d, s, step: (d, s)),
    ],
    ids=repr,
)
def test_what_is_more_than_a_clip_and_a_rate_has_no_form(transform: Transform) -> None:
    assert transform.form(1) is None


def test_a_form_follows_the_schedules() -> None:
    step = Chain(Clip(Power(2.0, 0.5), Constant(0.1)), Scale(Power(1.0, -1.0)))
    assert step.form(4) == ClipAndRate(4.0, 0.1, 0.25)


def test_only_long_float32_vectors_of_a_cpu_have_kernels(plainly: pytest.MonkeyPatch) -> None:
    plainly.setattr(kernels, "MIN_LENGTH", 10)
    assert kernels.fits(torch.zeros(10))
    for other in (torch.zeros(9), torch.zeros(10).double(), torch.zeros(20)[::2], torch.zeros(10, device="meta")):
        assert not kernels.fits(other)
    plainly.setattr(kernels, "_fused", lambda: None)
    assert not kernels.fits(torch.zeros(10))


@pytest.mark.parametrize("make", [tg.clip2, tg.sgdclip])
@pytest.mark.parametrize("late", [{}, {"downplay": True}, {"compensate": True}])
def test_a_run_has_the_same_bits_without_numba(monkeypatch: pytest.MonkeyPatch, make, late) -> None:  # type: ignore[no-untyped-def]
    outer = {"clip": 0.01} if make is tg.clip2 else {}
    method = make(lr=1.0, local_lr=0.1, local_clip=0.5, buffer=3, local_steps=3, mode="client", **outer, **late)
    task = tg.tasks.quadratic(clients=8, dimension=5000, noise=tg.Noise("student", tail=1.5, scale=0.1))

    def run() -> Tensor:
        return tg.simulate(method, task, tg.Fleet.paper(clients=8, stragglers="large"), rounds=12, seed=3).x

    quick, plain = both(monkeypatch, run)
    assert torch.equal(quick, plain)


@pytest.mark.parametrize("delta", [(torch.arange(1000.0) % 2)[::2], torch.full((1,), 0.25).expand(500)])
def test_vectors_that_do_not_lie_in_a_row_are_not_read_as_if_they_did(delta: Tensor) -> None:
    method = tg.sgdclip(lr=1.0, local_lr=0.1, local_clip=0.5, buffer=1, local_steps=1)
    server = tg.Server(method, torch.zeros(500), clients=1, seed=0)
    (job,) = server.dispatch()
    server.receive(tg.Update(job.client, job.serial, job.round, delta))
    assert torch.equal(server.x, delta)


@pytest.mark.parametrize("g", [torch.ones(500).double(), torch.ones(1000)[::2], torch.ones(500, requires_grad=True)])
def test_a_local_step_takes_a_gradient_of_any_kind(g: Tensor) -> None:
    x = torch.zeros(500)
    with torch.no_grad():
        local_step(x, g, None, STEPS["clip alone"], {}, Step(1))
    assert torch.equal(x, torch.full((500,), -0.7))


@pytest.mark.parametrize("keeps", [False, True])
def test_the_next_sum_takes_the_memory_of_the_last_unless_a_step_may_have_kept_it(keeps: bool) -> None:
    def update(direction: Tensor, state: State, step: Step) -> tuple[Tensor, State]:
        return direction, {"kept": direction}

    outer = Transform(lambda x: {}, update) if keeps else Scale(Constant(1.0))
    method = tg.Method(name="", inner=Scale(Constant(0.1)), outer=outer, buffer=2, local_steps=1, mode="client")
    server = tg.Server(method, torch.zeros(5000), clients=2, seed=0)
    jobs, places = server.dispatch(), []
    for i in range(4):
        job = jobs[0]
        jobs = server.receive(tg.Update(job.client, job.serial, job.round, torch.full((5000,), float(i)))).jobs
        places += [server.vectors.sum.data_ptr()] if server.vectors.sum is not None else []
        if i == 1:
            kept = server.vectors.state.get("kept")
            copy = None if kept is None else kept.clone()
    assert len(places) == 2
    assert (places[0] == places[1]) != keeps
    assert torch.equal(server.x, torch.full((5000,), 3.0))
    assert kept is None or (copy is not None and torch.equal(kept, copy))
