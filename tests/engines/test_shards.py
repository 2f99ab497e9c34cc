"""A server's vectors in slices, without Ray: the same bits as in one piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tardygrad as tg
from tardygrad.core.messages import Parts, Refused
from tardygrad.core.vectors import Held
from tardygrad.engines.contract import Pending
from tardygrad.engines.ray.server_shards import ServerShard, ShardedVectors, bounds, check_shards
from tardygrad.engines.wire import BLOCK, send, unpack
from tardygrad.runs import checkpoint
from tests.methods.test_relatives import METHODS, MODES, fleet, method

D = 3 * BLOCK + 100
STEPS: dict[str, Any] = {"local_lr": 0.1, "local_clip": 1.0, "lr": 1.0, "buffer": 3, "local_steps": 2}
CLIPS: dict[str, Callable[..., tg.Method]] = {
    "sgdclip": lambda mode: tg.sgdclip(**STEPS, mode=mode),
    "clip2": lambda mode: tg.clip2(**STEPS, clip=0.05, mode=mode),
    "SD-clip2": lambda mode: tg.clip2(**STEPS, clip=0.05, mode=mode, downplay=True),
    "DC-clip2": lambda mode: tg.clip2(**STEPS, clip=0.05, mode=mode, compensate=True),
    "SD-DC-clip2": lambda mode: tg.clip2(**STEPS, clip=0.05, mode=mode, downplay=True, compensate=True),
}
MAKE = CLIPS | {name: (lambda mode, name=name: method(name, mode)) for name in METHODS}


class Lost(Exception):
    """Ray's, of an object."""


class Died(Exception):
    """Ray's, of a process."""


class Actor:
    """A process that does at once what it is told, and says later what came of it."""

    def __init__(self, shard: ServerShard) -> None:
        self.shard = shard
        self.error: Exception | None = None  # what becomes of all calls, instead

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Callable[[], Any]:
            try:
                if self.error:
                    raise self.error
                value = getattr(self.shard, name)(*given)
            except Exception as error:
                return lambda error=error: fail(error)
            return lambda: value

        return SimpleNamespace(remote=remote)


def fail(error: Exception) -> None:
    raise error


RAY = SimpleNamespace(
    get=lambda asked: [one() for one in asked],
    wait=lambda asked, **how: (asked, []),
    exceptions=SimpleNamespace(ObjectLostError=Lost, RayActorError=Died),
)


def cut(one: tg.Method, x: torch.Tensor, shards: int, wire: Any = "float32") -> ShardedVectors:
    def hire(part: Any) -> Actor:
        return Actor(ServerShard(b"", lambda _: one, 1, part))

    return ShardedVectors(RAY, hire, one, x, shards)


def served(one: tg.Method, x: torch.Tensor, shards: int, wire: Any = "float32") -> tg.Server:
    return tg.Server(one, x, clients=12, seed=0, vectors=lambda method, x: cut(method, x, shards, wire))


def parts(update: Any, shards: int, wire: Any = "float32") -> Parts:
    """An update's vectors as they travel."""
    packed = {"delta": send(update.delta, None, wire)[0]}
    if update.curvature is not None:
        packed["curvature"] = send(update.curvature, None, wire)[0]
    spans = pairwise(bounds(len(update.delta), shards))
    return Parts(tuple({name: one.between(a, b).arrays() for name, one in packed.items()} for a, b in spans))


def give(server: tg.Server, message: Any, now: float, shards: int, wire: Any = "float32") -> Any:
    """A message to a server whose vectors are in slices."""
    if isinstance(message, tg.Update):
        message = message._replace(delta=parts(message, shards, wire), curvature=None)
    return server.receive(message, now)


def wide() -> Any:
    noise = tg.Noise(kind="student", tail=1.5, scale=0.1)
    return tg.tasks.quadratic(clients=12, dimension=D, heterogeneity=1.0, noise=noise)


def same(one: dict[Any, torch.Tensor], other: dict[Any, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def alike(sliced: Held, whole: Held) -> None:
    """The same vectors to the bit, and the same state but for `clipped`, a share that each slice has of its own."""
    assert torch.equal(sliced.x, whole.x)
    assert (sliced.sum is None) == (whole.sum is None)
    assert sliced.sum is None or torch.equal(sliced.sum, whole.sum)
    states = [{name: v for name, v in one.outer.items() if name != "clipped"} for one in (sliced, whole)]
    assert same(*states)
    assert same(sliced.past, whole.past)


def follow(one: tg.Method, shards: int) -> None:
    """The same messages to both."""
    here = wide()
    whole = tg.Server(one, here.init(0), clients=12, seed=0)
    sliced = served(one, here.init(0), shards)
    pool = tg.SimPool(here, one, fleet())
    for job, bare in zip(whole.dispatch(), sliced.dispatch(), strict=True):
        assert (bare[:3], type(bare.x)) == (job[:3], Parts)
        pool.submit(job)
    while whole.round < 5:
        message: Any = pool.next()
        told, sent = whole.receive(message, pool.now)
        heard, also = give(sliced, message, pool.now, shards)
        assert [job[:3] for job in also] == [job[:3] for job in sent]
        assert all(isinstance(job.x, Parts) for job in also)
        for job in sent:
            pool.submit(job)
        assert type(heard) is type(told)
        if isinstance(told, tg.Advanced):
            exact, near = {"round", "clients", "delays", "weights", "steps", "snapshots"}, ("norm", "move", "clipped")
            assert {name: getattr(heard, name) for name in exact} == {name: getattr(told, name) for name in exact}
            for name in near:
                assert getattr(heard, name) == pytest.approx(getattr(told, name), rel=1e-5, abs=1e-9)
            assert heard.norms == pytest.approx(told.norms, rel=1e-5)
            alike(sliced.vectors.held, whole.vectors.held)
    assert sliced.vectors.finite()


def allowed(name: str) -> bool:
    try:
        check_shards(MAKE[name]("client"), D, 3)
    except tg.Invalid:
        return False
    return True


ALLOWED = [name for name in MAKE if allowed(name)]


def test_these_can_be_cut() -> None:
    refused = {"dn_dylu-ceil", "fedavg-adamw", "dcasgd-a", "diloco", "halos", "halos-far"}
    assert set(MAKE) - set(ALLOWED) == refused


@pytest.mark.parametrize(("name", "mode"), zip(ALLOWED, cycle(MODES)))
def test_slices_have_the_bits_of_the_whole(name: str, mode: Any) -> None:
    follow(MAKE[name](mode), shards=3)


STEADY: dict[str, Any] = {"local_lr": 0.1, "optimizer": "AdamW", "buffer": 2, "local_steps": 1, "mode": "client"}
PRIVATE = tg.Privacy(clip=0.05, noise_multiplier=0.5, noise_seed=1)


@pytest.mark.parametrize("name", ["SD-DC-clip2", "fedbuff-model"])
def test_private_slices_are_clipped_by_the_length_of_the_whole_and_have_its_noise(name: str) -> None:
    follow(replace(MAKE[name]("client"), privacy=PRIVATE), shards=3)


def test_a_private_update_that_is_not_finite_in_one_slice_counts_as_nothing_in_all() -> None:
    one, here = replace(MAKE["DC-clip2"]("client"), privacy=PRIVATE), wide()
    whole, sliced = tg.Server(one, here.init(0), clients=12, seed=0), served(one, here.init(0), 3)
    jobs = {job.client: job for job in whole.dispatch()}
    sliced.dispatch()
    for client in (0, 1, 2):
        update = tg.work(jobs[client], here, one)
        assert isinstance(update.delta, torch.Tensor)
        update.delta[BLOCK] = math.nan if client != 1 else 0.0
        whole.receive(update)
        give(sliced, update, 0.0, 3)
    assert whole.round == sliced.round == 1
    alike(sliced.vectors.held, whole.vectors.held)
    assert sliced.vectors.finite()


def test_a_private_state_that_is_not_finite_counts_as_nothing_too() -> None:
    """Its worker sends it, in place of a reference, so that the server can see it."""
    one, here = tg.fedavg(**STEADY, keep="worker", privacy=PRIVATE), wide()
    sliced = served(one, here.init(0), 3)
    for job in sliced.dispatch()[:2]:
        update = tg.work(job._replace(x=here.init(0)), here, one)
        happened = give(sliced, update, 0.0, 3).happened
        assert not isinstance(happened, Refused)
    assert sliced.round == 1
    assert not sliced.client_states
    assert sliced.vectors.finite()


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_whatever_they_travel_as(wire: Any) -> None:
    """Packed once: what was packed and unpacked may not be packed to the same numbers again."""
    one, here = MAKE["DC-clip2"]("client"), wide()
    whole, sliced = tg.Server(one, here.init(0), clients=12, seed=0), served(one, here.init(0), 3, wire)
    jobs = {job.client: job for job in whole.dispatch()}
    sliced.dispatch()
    for client in (0, 1, 2, 0, 3, 1):
        update = tg.work(jobs[client], here, one)
        assert update.curvature is not None
        arrived = [unpack(send(v, None, wire)[0]) for v in (update.delta, update.curvature)]
        sent = whole.receive(update._replace(delta=arrived[0], curvature=arrived[1])).jobs
        give(sliced, update, 0.0, 3, wire)
        jobs |= {job.client: job for job in sent}
    assert whole.round == 2
    alike(sliced.vectors.held, whole.vectors.held)


@pytest.mark.parametrize(
    ("at", "vector", "bad"), [(0, "delta", math.nan), (BLOCK, "curvature", math.inf), (D - 1, "delta", math.inf)]
)
def test_what_is_wrong_in_one_slice_is_refused_by_all(at: int, vector: str, bad: float) -> None:
    one, here = MAKE["DC-clip2"]("client"), wide()
    server, clean = served(one, here.init(0), 3), served(one, here.init(0), 3)
    jobs = server.dispatch()
    clean.dispatch()
    good = [tg.work(job._replace(x=here.init(0)), here, one) for job in jobs]
    for each in (server, clean):
        give(each, good[0], 1.0, 3)
    before = server.vectors.held.sum
    spoilt = getattr(good[1], vector).clone()
    spoilt[at] = bad
    happened, (again,) = give(server, good[1]._replace(**{vector: spoilt}), 2.0, 3)
    assert happened == Refused(1, 0, 0, "not finite")
    assert torch.equal(server.vectors.held.sum, before)
    assert (again.client, again.serial) == (1, 1)
    for each in (server, clean):
        give(each, good[2], 3.0, 3)
        give(each, good[3], 3.0, 3)
    assert server.round == clean.round == 1
    assert torch.equal(server.x, clean.x)


def test_a_slice_of_another_length_is_refused_and_what_is_no_tensor_is_looked_at_too() -> None:
    one, here = MAKE["clip2"]("client"), wide()
    server = served(one, here.init(0), 3)
    job, *_ = server.dispatch()
    update = tg.work(job._replace(x=here.init(0)), here, one)
    turned = update._replace(delta=Parts(parts(update, 3).references[::-1]))
    assert server.receive(turned).happened == Refused(0, 0, 0, "wrong shape")
    carried = update._replace(serial=1, module_buffers=tg.ModuleBuffers(torch.ones(1), torch.ones(1)))
    assert give(server, carried, 1.0, 3).happened == Refused(0, 1, 0, "wrong shape")


def test_parts_that_are_gone_and_processes_that_are_dead() -> None:
    one, here = MAKE["clip2"]("client"), wide()
    server = served(one, here.init(0), 3)
    job, other, *_ = server.dispatch()
    x = here.init(0)
    actor = server.vectors.actors[1]  # type: ignore[attr-defined]
    actor.error = Lost()
    assert give(server, tg.work(job._replace(x=x), here, one), 1.0, 3).happened == Refused(0, 0, 0, "lost on the way")
    assert [len(server.buffer), server.round] == [0, 0]
    actor.error = Died()
    with pytest.raises(tg.WorkFailed, match=r"^a server shard has died\. Resume the run\.$"):
        give(server, tg.work(other._replace(x=x), here, one), 2.0, 3)


@pytest.mark.parametrize("name", ["SD-DC-clip2", "fadas", "fedbuff-model"])
def test_what_is_put_is_read_again_by_any_number_of_slices(name: str, tmp_path: Path) -> None:
    one, here = MAKE[name]("client"), wide()
    whole = tg.Server(one, here.init(0), clients=12, seed=0)
    for _ in tg.drive(whole, tg.SimPool(here, one, fleet()), 6):
        if whole.round == 5 and len(whole.buffer) == 2:
            break
    held = whole.vectors.held
    for shards in (1, 2, 3):
        sliced = cut(one, here.init(1), shards)
        sliced.put(held)
        alike(sliced.held, held)
        assert same(sliced.held.outer, held.outer)
        again = cut(one, here.init(2), 4 - shards)
        again.put(sliced.held)
        alike(again.held, held)
        steps = [vectors.advance(7, (1, 2, 1), 3.0) for vectors in (sliced, again)]
        assert steps[0][1:] == pytest.approx(steps[1][1:], rel=1e-5)
        assert torch.equal(sliced.x, again.x)
        assert (sliced.held.sum, again.held.sum) == (None, None)
    server = served(one, here.init(0), 3)
    server.vectors.put(held._replace(past={}))
    server.round, server.buffer = whole.round, list(whole.buffer)
    (tmp_path / "checkpoints").mkdir()
    checkpoint.save(tmp_path / "checkpoints", checkpoint.capture(server, Pending(0.0, [], [])))
    saved = checkpoint.read(tmp_path / "checkpoints")
    assert saved is not None
    for fresh in (served(one, here.init(0), 2), tg.Server(one, here.init(0), clients=12, seed=0)):
        checkpoint.apply(saved, fresh)
        assert (fresh.round, len(fresh.buffer)) == (5, 2)
        alike(fresh.vectors.held, held._replace(past={}))


def test_a_put_sum_is_added_to_and_not_what_was_given() -> None:
    one, here = MAKE["clip2"]("client"), wide()
    total = torch.ones(D)
    sliced = cut(one, here.init(0), 3)
    sliced.put(Held(here.init(0), total, {}, {}))
    update = tg.Update(0, 0, 0, torch.ones(D), steps=1, loss=0.0)
    update = update._replace(delta=parts(update, 3))
    assert sliced.validate(update, None) == pytest.approx(math.sqrt(D))
    sliced.fold(update, 1.0)
    assert torch.equal(sliced.held.sum, torch.full((D,), 2.0))  # type: ignore[arg-type]
    assert torch.equal(total, torch.ones(D))


def test_a_model_that_is_not_finite_in_one_slice_is_not_finite() -> None:
    one, here = MAKE["sgdclip"]("client"), wide()
    for at in (0, D - 1):
        sliced, total = cut(one, here.init(0), 3), torch.zeros(D)
        total[at] = math.inf
        sliced.put(Held(here.init(0), total, {}, {}))
        assert sliced.finite()
        sliced.advance(1, (1,), 1.0)
        assert not sliced.finite()
        whole = sliced.x
        sliced.put(Held(here.init(0), None, {}, {}))
        assert sliced.finite()
        sliced.put(Held(whole, None, {}, {}))
        assert not sliced.finite()
        sliced.close()
        assert torch.equal(sliced.x.isfinite(), whole.isfinite())


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.data())
def test_slices_are_whole_blocks_and_none_is_empty(data: st.DataObject) -> None:
    parameters = data.draw(st.one_of(st.integers(1, 20 * BLOCK), st.integers(1, 10**12)))
    shards = data.draw(st.integers(1, min(max(parameters // BLOCK, 1), 500)))
    check_shards(MAKE["clip2"]("client"), parameters, shards)
    cuts = bounds(parameters, shards)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, parameters, shards + 1)
    assert all(a < b for a, b in pairwise(cuts))
    assert all(a % BLOCK == 0 for a in cuts[:-1])
    sizes = [b - a for a, b in pairwise(cuts)]
    assert max(sizes) - min(sizes) < 2 * BLOCK


@pytest.mark.parametrize(
    ("make", "parameters", "shards", "said"),
    [
        ("clip2", D, 0, "`server_shards` must be a whole number, 1 or more, got 0."),
        ("clip2", D, 4, "`server_shards` must be at most one for every 4,096 parameters (3), got 4."),
        ("halos", D, 2, "`server_shards` must be 1 for a method that has regions, got 2 with HALoS."),
        ("diloco", D, 2, "`server_shards` must be 1 for a method that sends a state with each job, got 2 with DiLoCo. Use keep='worker'."),  # noqa: E501
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(make: str, parameters: int, shards: Any, said: str) -> None:
    with pytest.raises(tg.Invalid) as caught:
        check_shards(MAKE[make]("client"), parameters, shards)
    assert str(caught.value) == said
    check_shards(MAKE[make]("client"), parameters, 1)


def test_an_outer_clip_by_the_l2_norm_is_not_coordinate_wise() -> None:
    for clip in (1e-9, 0.3, 5.0, 1e6):
        l2 = tg.clip2(**STEPS, clip=clip, norm="l2")
        with pytest.raises(tg.Invalid, match="not coordinate-wise, such as a clip by length, got 2 with Clip²"):
            check_shards(l2, D, 2)
        check_shards(l2, D, 1)
        check_shards(tg.clip2(**STEPS, clip=clip), D, 2)


def test_slices_that_do_not_answer_are_not_waited_for_for_ever() -> None:
    looks = iter(range(3))
    slow = SimpleNamespace(**vars(RAY) | {"wait": lambda asked, **how: ([], asked)})

    def still(since: float) -> None:
        if next(looks, None) is None:
            raise tg.WorkFailed("no answer")

    one = MAKE["clip2"]("client")
    with pytest.raises(tg.WorkFailed, match="no answer"):
        ShardedVectors(
            slow, lambda part: Actor(ServerShard(b"", lambda _: one, 1, part)), one, torch.zeros(D), 2, still
        )
    assert next(looks, None) is None
