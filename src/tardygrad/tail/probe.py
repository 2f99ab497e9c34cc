"""The noise of a task's gradients at a given model, layer by layer.

    noise = (g_1 − g_2) / √2, for two mini-batches of one client at the same x

The difference cancels the client's mean gradient without estimating it, and has the variance and the tail index of the
noise. Subtracting a mean over n mini-batches would not work: one very large gradient shifts all n by 1/n of itself, and
these shifts are far out in the tail.

A keyed sample of coordinates keeps memory small for any model. Coordinates of very different scales have a heavy tail
together even if each is Gaussian, so the tail is estimated twice: of the raw noise, which is what clipping sees, and of
each coordinate's noise divided by its own scale, the median of its absolute value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tardygrad import streams
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.core.own_loop import OwnLoop
from tardygrad.core.task import Task
from tardygrad.errors import Invalid, check_integer
from tardygrad.tail.estimate import Tail, estimate
from tardygrad.tail.hill import Numbers, survival
from tardygrad.tasks.torch_task import TorchTask
from tardygrad.tasks.views import trainable

VALUES = 2**17  # noise values per layer; twice as many for the whole model
QUANTILES = (0.5, 0.9, 0.99, 0.999)
CLIPPED = 0.05  # the share of coordinates that the suggested threshold clips
SPARSE = 20  # a coordinate is mostly zero if its 0.9 quantile exceeds 20 medians; for a Cauchy law it is 6
POINTS = 200  # of a survival curve
ROUNDING = 1e-5  # differences below this share of the largest gradient are rounding errors, not noise


class LayerSample(NamedTuple):
    """A layer, or the whole model, and its sampled coordinates."""

    name: str
    size: int  # coordinates
    sample: Tensor  # indices into the vector


class Sampling(NamedTuple):
    """Which clients, mini-batches and coordinates a probe samples."""

    clients: list[int]
    batches: int  # per client, an even number
    seed: int
    parts: list[LayerSample]  # the whole model first


@dataclass(frozen=True)
class Layer:
    """Statistics of a layer's gradients."""

    name: str
    size: int
    sampled: int  # coordinates
    tail: Tail | None  # of the noise; None without noise
    scaled: Tail | None  # of each coordinate's noise divided by its own scale
    noise: dict[str, float]  # quantiles of |noise|
    gradient: dict[str, float]  # quantiles of |g|
    above: float | None  # share of coordinates with |g| > u
    suggested: float  # the threshold that clips 5 % of the coordinates


@dataclass(frozen=True)
class Probe:
    """Statistics of the gradients at a model, overall and per layer."""

    clients: list[int]
    batches: int  # per client
    clip: float | None  # u
    whole: Layer
    layers: list[Layer]
    length: float  # the 0.95 quantile of ‖g‖
    survival: list[tuple[float, float]]  # of the whole model: |noise|, and the share at or above it
    scaled_survival: list[tuple[float, float]]  # the same for scaled noise


def probe(
    task: Task,
    x: Vector,
    *,
    module_buffers: ModuleBuffers | None = None,
    clients: int = 8,
    batches: int = 16,
    seed: int = 0,
    clip: float | None = None,
) -> Probe:
    """Measure the noise of a task's gradients at x.

    Args:
        task: any task with gradient noise.
        x: the model's vector.
        module_buffers: the model's buffers, if it has any.
        clients: how many randomly drawn clients to sample; at most all of them.
        batches: mini-batches per client, an even number.
        seed: draws clients, mini-batches and coordinates.
        clip: u, a threshold; the result says which share of coordinates it clips.
    """
    chosen = sampling(task, x, clients=clients, batches=batches, seed=seed)
    return summarise(chosen, gradients(task, x, chosen, module_buffers), clip)


def sampling(task: Task, x: Vector, *, clients: int = 8, batches: int = 16, seed: int = 0) -> Sampling:
    """Draw the clients, mini-batches and coordinates of a probe."""
    if isinstance(task, OwnLoop):
        fix = "To estimate the tail of its updates instead, run it with run.tail_every=10 (in Python: tail_every=10)."
        raise Invalid(f"a probe needs gradients, and this task trains with its own loop. {fix}")
    check_integer("clients", clients)
    check_integer("batches", batches, 2)
    if batches % 2:
        raise Invalid(f"`batches` must be even, since noise is measured on pairs of mini-batches, got {batches}.")
    count = min(clients, task.clients)
    who = streams.generator(seed, "probe").choice(task.clients, count, replace=False)
    most = max(VALUES // (count * batches // 2), 1)
    parts = [_sample("all", 0, task.parameters, 2 * most, seed)]
    if isinstance(task, TorchTask):
        start = 0
        parameters = trainable(task.module(x, task.init_module_buffers()))
        sizes = [(name.rpartition(".")[0] or name, p.numel()) for name, p in parameters.items()]  # (module, parameters)
        for name, group in groupby(sizes, key=lambda entry: entry[0]):
            size = sum(number for _, number in group)
            parts.append(_sample(name, start, size, most, seed))
            start += size
    return Sampling(sorted(map(int, who)), batches, seed, parts)


def _sample(name: str, start: int, size: int, most: int, seed: int) -> LayerSample:
    drawn = streams.generator(seed, "coordinates", start, size).choice(size, min(size, most), replace=False)
    return LayerSample(name, size, torch.from_numpy(np.sort(drawn) + start))


def gradients(task: Task, x: Vector, chosen: Sampling, module_buffers: ModuleBuffers | None = None) -> Iterator[Tensor]:
    """The sampled coordinates of each mini-batch's gradient followed by its norm, client by client."""
    sampled = torch.cat([part.sample for part in chosen.parts])
    for client in chosen.clients:
        own = ModuleBuffers(*(flat.clone() for flat in module_buffers)) if module_buffers else None
        job = Job(client, 0, 0, x, chosen.batches, None, streams.key(chosen.seed, "probe"), own)
        for batch in task.batches(job):
            _, g = task.gradient(x, batch, own)
            yield torch.cat([g[sampled], torch.linalg.vector_norm(g).reshape(1)]).cpu()


def summarise(chosen: Sampling, rows: Iterable[Tensor], clip: float | None = None) -> Probe:
    """Statistics of sampled gradients, as `gradients` yields them."""
    table = torch.stack(list(rows)).numpy()
    seen, lengths = table[:, :-1], table[:, -1]
    if not np.isfinite(seen).all():
        raise Invalid("a noise probe needs finite gradients, got NaN or inf at this model. Probe at x_0.")
    ends = np.cumsum([len(part.sample) for part in chosen.parts])[:-1]
    values = np.split(seen.reshape(len(chosen.clients), chosen.batches, -1), ends, axis=2)
    whole, *layers = (_layer(part, g.astype(np.float64), clip) for part, g in zip(chosen.parts, values, strict=True))
    if whole.tail is None:
        fix = "Use a smaller batch_size." if layers else "The task has no gradient noise."
        raise Invalid(
            f"a noise probe needs gradients that differ between a client's mini-batches, got equal ones. {fix}"
        )
    noise = _noise(values[0].astype(np.float64))
    curves = (survival(np.abs(each[each != 0]), POINTS) for each in (noise, _scaled(noise)))
    length = float(np.quantile(lengths, 1 - CLIPPED))
    return Probe(chosen.clients, chosen.batches, clip, whole, layers, length, *curves)


def _noise(g: Numbers) -> Numbers:
    """One row for each pair of a client's mini-batches."""
    return np.asarray((g[:, ::2] - g[:, 1::2]).reshape(-1, g.shape[2]) / math.sqrt(2))


def _scaled(noise: Numbers) -> Numbers:
    """Each coordinate divided by the median of its absolute value, without coordinates that are mostly zero."""
    scale, large = np.quantile(np.abs(noise), [0.5, 0.9], axis=0)
    dense = scale > large / SPARSE
    return np.asarray(noise[:, dense] / scale[dense])


def _layer(part: LayerSample, g: Numbers, clip: float | None) -> Layer:
    noise, sizes = _noise(g), np.abs(g)
    noisy = float(np.abs(noise).max()) > ROUNDING * float(sizes.max())
    return Layer(
        name=part.name,
        size=part.size,
        sampled=len(part.sample),
        tail=estimate(noise) if noisy else None,
        scaled=estimate(scaled) if noisy and (scaled := _scaled(noise)).size else None,
        noise=_quantiles(np.abs(noise)),
        gradient=_quantiles(sizes),
        above=None if clip is None else float((sizes > clip).mean()),
        suggested=float(np.quantile(sizes, 1 - CLIPPED)),
    )


def _quantiles(sizes: Numbers) -> dict[str, float]:
    return {str(q): float(value) for q, value in zip(QUANTILES, np.quantile(sizes, QUANTILES), strict=True)}
