"""Narrow numbers on the wire: what arrives, how far off it is, and that nothing is lost for good."""

from __future__ import annotations

import gc
import math
import re
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tardygrad.core import kernels
from tardygrad.engines.wire import BLOCK, Packed, Wire, send, unpack
from tardygrad.errors import Invalid

LIGHT = settings(deadline=None, max_examples=60, derandomize=True)
ALL: tuple[Wire, ...] = ("float32", "bfloat16", "int8")
NARROW = ALL[1:]
SIZES = (0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 33 * BLOCK + 5)  # the last is more than a chunk
DENORMAL = 2.0**-149  # the least that float32 has
EVERY = pytest.mark.parametrize("wire", ALL)
EACH = pytest.mark.parametrize("wire", NARROW)


@pytest.fixture(autouse=True, scope="module", params=["plain", "fused"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is true of the plain lines and of the kernels."""
    if request.param == "fused":
        pytest.importorskip("tardygrad.core.fused", reason="needs numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MIN_LENGTH", math.inf if request.param == "plain" else 1)
        yield


def normal(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def pack(v: Tensor, wire: Wire) -> Packed:
    """What is sent without an earlier error."""
    return send(v, None, wire)[0]


def there(v: Tensor, wire: Wire) -> Tensor:
    return unpack(pack(v, wire))


def allowed(v: Tensor, wire: Wire) -> Tensor:
    """The error that each coordinate may have, in float64, with room for float32's own rounding."""
    v = v.double().abs()
    largest = torch.cat([block.amax().expand(len(block)) for block in v.split(BLOCK)]) if len(v) else v
    bound = {"float32": 0 * v, "bfloat16": v * 2.0**-8, "int8": largest / 254}[wire]
    return bound * (1 + 1e-3) + {"float32": 0, "bfloat16": 2**15 * DENORMAL, "int8": DENORMAL}[wire]


@EVERY
@LIGHT
@given(st.sampled_from(SIZES), st.floats(-37, 37), st.floats(0, 20), st.integers(0, 9))
def test_every_coordinate_arrives_within_its_bound(
    wire: Wire, size: int, power: float, spread: float, seed: int
) -> None:
    """With coordinates of very different sizes beside each other, and blocks of very different scales."""
    blocks = torch.repeat_interleave(normal(-(-size // BLOCK), seed + 10), BLOCK)[:size]
    v = normal(size, seed) * 10 ** (power + spread * normal(size, seed + 20).clamp(-1, 0) + blocks.clamp(-1, 0)) / 10
    out = there(v, wire)
    assert out.dtype == torch.float32
    assert out.shape == v.shape
    assert ((out.double() - v.double()).abs() <= allowed(v, wire)).all()


def test_int8_rounds_half_to_even_and_is_symmetric() -> None:
    v = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0])
    assert pack(v, "int8").numbers.tolist() == [127, 0, 2, 2, 0, -2, -2, -127]
    v = normal(BLOCK)
    assert torch.equal(there(-v, "int8"), -there(v, "int8"))


def test_the_largest_of_a_block_arrives_exactly_however_small_or_large() -> None:
    for largest in (1e-45, 1e-38, 1.0, torch.finfo(torch.float32).max):
        v = torch.tensor([largest, -largest, largest / 2, 0.0])
        out = there(v, "int8")
        assert out[[0, 1, 3]].tolist() == v[[0, 1, 3]].tolist()
        assert ((out.double() - v.double()).abs() <= allowed(v, "int8")).all()


def test_bfloat16_ends_a_little_before_float32_and_never_turns_into_another_number() -> None:
    for largest, arrives in ((1e-45, 0.0), (1e-38, 1e-38), (3e38, 3e38), (3.4e38, math.inf)):
        assert there(torch.tensor([largest]), "bfloat16").item() == pytest.approx(arrives, rel=2**-8)


@EACH
def test_a_block_of_denormals_survives_where_they_are_flushed_to_zero(wire: Wire) -> None:
    v = torch.tensor([1e-45, -1e-42, 0.0])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        out = there(v, wire)
    finally:
        torch.set_flush_denormal(False)
    assert (out.abs() <= 1e-42).all()


@EVERY
def test_zeros_arrive_as_zeros_beside_other_blocks_too(wire: Wire) -> None:
    v = torch.cat([torch.zeros(BLOCK), normal(BLOCK), torch.zeros(3)])
    out = there(v, wire)
    assert not out[:BLOCK].any()
    assert not out[-3:].any()
    assert out[BLOCK : 2 * BLOCK].all() == (wire != "int8")  # what is too small for int8 is zero as well


@EVERY
def test_what_is_not_finite_never_arrives_as_finite(wire: Wire) -> None:
    for bad, at, rest in ((math.nan, 0, 0.0), (math.inf, BLOCK + 5, 3e38), (-math.inf, 2 * BLOCK, 1.0)):
        v = torch.full((2 * BLOCK + 1,), rest)
        v[at] = bad
        out = there(v, wire)
        assert not out[at].isfinite()
        blocks = [bool(block.isfinite().all()) for block in out.split(BLOCK)]
        assert blocks == [at // BLOCK != i for i in range(3)]  # and spoils no other block


@EVERY
def test_the_packing_of_a_slice_is_the_slice_of_the_packing(wire: Wire) -> None:
    v = normal(70 * BLOCK + 11) * torch.logspace(-20, 20, 70 * BLOCK + 11)
    whole, left = pack(v, wire), send(v, v / 3, wire)[1]
    for a, b in ((0, BLOCK), (BLOCK, 40 * BLOCK), (32 * BLOCK, None), (3 * BLOCK, 3 * BLOCK)):
        part, part_left = pack(v[a:b], wire), send(v[a:b], v[a:b] / 3, wire)[1]
        assert torch.equal(part.numbers, whole.numbers[a:b])
        if whole.scales is None:
            assert part.scales is None
        else:
            assert torch.equal(part.scales, whole.scales[a // BLOCK : None if b is None else b // BLOCK])
        assert left is part_left is None if wire == "float32" else torch.equal(part_left, left[a:b])


@EVERY
def test_any_length_works_and_has_the_bytes_it_should(wire: Wire) -> None:
    width = {"float32": 4, "bfloat16": 2, "int8": 1}[wire]
    for size in SIZES:
        packed = pack(normal(size), wire)
        scales = -(-size // BLOCK) if wire == "int8" else 0
        assert packed.nbytes == width * size + 4 * scales == sum(one.nbytes for one in packed.arrays())
        assert packed.numbers.dtype == getattr(torch, wire)
        assert (packed.scales is None) == (wire != "int8")


def test_float32_is_the_vector_itself() -> None:
    v = normal(5)
    packed, error = send(v, v, "float32")
    assert packed.numbers is pack(v, "float32").numbers is unpack(packed) is v
    assert error is None


@EVERY
def test_arguments_are_not_changed(wire: Wire) -> None:
    v, error = normal(BLOCK + 3), normal(BLOCK + 3, 1)
    packed, _ = send(v, error, wire)
    before = [one.copy() for one in packed.arrays()]
    unpack(packed)
    assert torch.equal(v, normal(BLOCK + 3))
    assert torch.equal(error, normal(BLOCK + 3, 1))
    assert all(map(np.array_equal, before, packed.arrays()))


# Error feedback.


@EACH
def test_what_is_sent_and_what_is_left_out_are_what_was_meant(wire: Wire) -> None:
    v, error = normal(33 * BLOCK + 5), normal(33 * BLOCK + 5, 1) / 100
    for e, meant in ((None, v), (error, v + error)):
        packed, left = send(v, e, wire)
        assert all(map(np.array_equal, packed.arrays(), pack(meant, wire).arrays()))
        assert torch.equal(left, meant - unpack(packed))


@EACH
def test_with_feedback_nothing_is_lost_for_good_and_without_it_the_sum_drifts(wire: Wire) -> None:
    """Σ sent = Σ meant − the last error, after 200 sends of much the same vector, whose rounding repeats itself."""
    steady, size = normal(BLOCK + 9), BLOCK + 9
    meant, fed, bare = (torch.zeros(size, dtype=torch.float64) for _ in range(3))
    error, ratios = None, []
    for i in range(200):
        v = steady + 1e-4 * normal(size, i)
        packed, error = send(v, error, wire)
        meant += v
        fed += unpack(packed)
        bare += there(v, wire)
        assert ((meant - fed - error).abs() <= 2.0**-22 * (i + 1)).all()  # v + e is rounded to float32
        ratios.append(float((meant - bare).abs().max() / (meant - fed).abs().max()))
    assert (error.double().abs() <= 2 * allowed(steady, wire) + 1e-4).all()
    assert ratios[-1] > 20
    assert ratios[-1] > 5 * ratios[5]


@EACH
def test_the_error_outlives_what_is_not_finite_and_a_sum_that_overflows(wire: Wire) -> None:
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    cases: list[tuple[Tensor, Tensor | None]] = [(largest, largest / 100)]
    for at in (0, BLOCK + 1):
        for bad, error in ((math.nan, None), (math.inf, normal(BLOCK + 2, 1))):
            cases.append((normal(BLOCK + 2), error))
            cases[-1][0][at] = bad
    for v, error in cases:
        packed, left = send(v, error, wire)
        assert left is error
        assert not unpack(packed).isfinite().all()


# Arrays for transport.


@pytest.mark.parametrize(
    ("wire", "size", "writable"),
    [(ALL[i % 3], size, bool(i // 3 % 2)) for i, size in enumerate(SIZES)] + [("int8", SIZES[-1], False)],
)
def test_arrays_make_the_round_trip_on_the_same_memory_and_in_silence(wire: Wire, size: int, writable: bool) -> None:
    packed = pack(normal(size), wire)
    arrays = packed.arrays()
    assert arrays[0].dtype == ("uint16" if wire == "bfloat16" else wire)
    if not writable:
        for one in arrays:
            one.flags.writeable = False
    torch.set_warn_always(True)  # else torch warns once in a process, which may have been elsewhere
    try:
        if not writable:
            with pytest.warns(UserWarning, match="not writable"):
                torch.from_numpy(arrays[0])
        back = Packed.of(arrays)
        assert torch.equal(unpack(back), unpack(packed))
    finally:
        torch.set_warn_always(False)
    for there_, here, array in zip(packed, back, (*arrays, None), strict=False):
        if there_ is not None:
            assert here.dtype == there_.dtype
            assert here.data_ptr() == there_.data_ptr()
            assert size == 0 or here.data_ptr() == array.ctypes.data
    assert [one.flags.writeable for one in arrays] == [writable] * len(arrays)


def test_arrays_live_as_long_as_the_tensors_on_them_and_no_longer() -> None:
    array = np.frombuffer(np.ones(5, np.float32).tobytes(), np.float32)
    alive = weakref.ref(array)
    packed = Packed.of([array])
    del array
    gc.collect()
    assert alive() is not None
    assert packed.numbers.tolist() == [1.0] * 5
    del packed
    gc.collect()
    assert alive() is None


def test_the_wire_must_be_known() -> None:
    text = re.escape("`wire` must be one of float32, bfloat16, int8, got 'int4'.")
    with pytest.raises(Invalid, match=text):
        send(normal(3), None, "int4")  # type: ignore[arg-type]


def test_a_vector_without_a_scale_for_each_block_is_refused() -> None:
    for scales in (torch.ones(0), torch.ones(1), torch.ones(1, 2), torch.ones(2**18, dtype=torch.int8)):
        for size in (2 * BLOCK, 2**18):
            with pytest.raises(ValueError, match="needs a scale for each of its blocks"):
                unpack(Packed(torch.zeros(size, dtype=torch.int8), scales))
