"""The noise of a task's gradients at a model, layer by layer.

    noise = (g_1 − g_2) / √2, for two mini-batches of one client at the same x

In a difference the client's own mean is gone, without having been estimated, and the variance and the tail index are
those of the noise. Less a mean over n mini-batches it would not do: one very large gradient moves the noise of all n,
by 1/n of itself, and these echoes are far out in the tail.

Coordinates are a keyed sample, so memory stays small whatever the model. Coordinates of very different scales have a
heavy tail together even if each by itself is Gaussian, so the tail is estimated twice: of the noise as it is, which is
what a clip sees, and of every coordinate's noise over its own scale, the median of its size.
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
from tardygrad.core.algorithm import Task
from tardygrad.core.messages import Job, ModuleBuffers, Vector
from tardygrad.errors import Invalid, check_integer
from tardygrad.tail.estimate import Tail, estimate
from tardygrad.tail.hill import Numbers
from tardygrad.tasks.torch_task import TorchTask
from tardygrad.tasks.views import trainable

VALUES = 2**17  # of a layer's noise; twice as many of the whole model's
QUANTILES = (0.5, 0.9, 0.99, 0.999)
CLIPPED = 0.05  # the share of coordinates that a suggested threshold clips
SPARSE = 20  # times the median is the 0.9-quantile of coordinates that are mostly zero; of a Cauchy law it is 6 times
POINTS = 200  # of a survival curve
ROUNDING = 1e-5  # of the largest gradient: less is no noise


class Part(NamedTuple):
    """A layer, or the whole model, and which of its coordinates are looked at."""

    name: str
    size: int  # coordinates
    sample: Tensor  # of them, by their places in the vector


class Sampling(NamedTuple):
    """Which mini-batches of whom, and which coordinates of their gradients."""

    clients: list[int]
    batches: int  # of each, an even number
    seed: int
    parts: list[Part]  # the whole model first


@dataclass(frozen=True)
class Layer:
    """What the gradients of a layer are like."""

    name: str
    size: int
    sampled: int  # coordinates
    tail: Tail | None  # of the noise; None: there is none
    scaled: Tail | None  # of every coordinate's noise over its own scale
    noise: dict[str, float]  # quantiles of |noise|
    gradient: dict[str, float]  # quantiles of |g|
    above: float | None  # share of coordinates with |g| > u
    suggested: float  # the threshold that clips a twentieth of the coordinates


@dataclass(frozen=True)
class Probe:
    """The gradients at a model, the whole of it and layer by layer."""

    clients: list[int]
    batches: int  # of each client
    clip: float | None  # u
    whole: Layer
    layers: list[Layer]
    length: float  # the 0.95 quantile of ‖g‖
    survival: list[tuple[float, float]]  # of the whole: |noise|, and the share beyond it
    scaled_survival: list[tuple[float, float]]  # the same, every coordinate over its own scale


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
    """The noise of a task's gradients at x.

    Args:
        clients: how many are asked, drawn at random; fewer if there are fewer.
        batches: mini-batches of each, an even number.
        seed: of clients, mini-batches and coordinates.
        clip: u, the threshold whose share of clipped coordinates is wanted.
    """
    chosen = sampling(task, x, clients=clients, batches=batches, seed=seed)
    return told(chosen, gradients(task, x, chosen, module_buffers), clip)


def sampling(task: Task, x: Vector, *, clients: int = 8, batches: int = 16, seed: int = 0) -> Sampling:
    """What a probe looks at."""
    check_integer("clients", clients)
    check_integer("batches", batches, 2)
    if batches % 2:
        raise Invalid(f"`batches` must be an even number, as noise is seen in pairs, got {batches}.")
    count = min(clients, task.clients)
    who = streams.generator(seed, "probe").choice(task.clients, count, replace=False)
    most = max(VALUES // (count * batches // 2), 1)
    parts = [_part("all", 0, task.parameters, 2 * most, seed)]
    if isinstance(task, TorchTask):
        start = 0
        sizes = [(_layer(name), p.numel()) for name, p in trainable(task.module(x, task.init_module_buffers())).items()]
        for name, group in groupby(sizes, key=lambda one: one[0]):
            size = sum(number for _, number in group)
            parts.append(_part(name, start, size, most, seed))
            start += size
    return Sampling(sorted(map(int, who)), batches, seed, parts)


def _layer(parameter: str) -> str:
    """The module that owns a parameter; of a module without a name, the parameter."""
    return parameter.rpartition(".")[0] or parameter


def _part(name: str, start: int, size: int, most: int, seed: int) -> Part:
    drawn = streams.generator(seed, "coordinates", start, size).choice(size, min(size, most), replace=False)
    return Part(name, size, torch.from_numpy(np.sort(drawn) + start))


def gradients(task: Task, x: Vector, chosen: Sampling, module_buffers: ModuleBuffers | None = None) -> Iterator[Tensor]:
    """The sampled coordinates of each mini-batch's gradient, and last its length, client by client."""
    everywhere = torch.cat([part.sample for part in chosen.parts])
    for client in chosen.clients:
        own = ModuleBuffers(*(flat.clone() for flat in module_buffers)) if module_buffers else None
        job = Job(client, 0, 0, x, chosen.batches, None, streams.key(chosen.seed, "probe"), own)
        for batch in task.batches(job):
            _, g = task.gradient(x, batch, own)
            yield torch.cat([g[everywhere], torch.linalg.vector_norm(g).reshape(1)]).cpu()


def told(chosen: Sampling, rows: Iterable[Tensor], clip: float | None = None) -> Probe:
    """What the gradients say."""
    lengths = (seen := torch.stack(list(rows)).numpy())[:, -1]
    seen = seen[:, :-1]
    if not np.isfinite(seen).all():
        raise Invalid("a noise probe needs finite gradients, got some at this model that are not. Probe at x_0.")
    ends = np.cumsum([len(part.sample) for part in chosen.parts])[:-1]
    values = np.split(seen.reshape(len(chosen.clients), chosen.batches, -1), ends, axis=2)
    everything, *layers = (
        _told(part, g.astype(np.float64), clip) for part, g in zip(chosen.parts, values, strict=True)
    )
    if everything.tail is None:
        fix = "Use a smaller batch_size." if layers else "The task has no gradient noise."
        raise Invalid(
            "a noise probe needs gradients that differ between mini-batches, got the same for every one of a client's. "
            + fix
        )
    noise = _noise(values[0].astype(np.float64))
    curves = (_survival(noise), _survival(_scaled(noise)))
    length = float(np.quantile(lengths, 1 - CLIPPED))
    return Probe(chosen.clients, chosen.batches, clip, everything, layers, length, *curves)


def _noise(g: Numbers) -> Numbers:
    """One row for each pair of a client's mini-batches."""
    return np.asarray((g[:, ::2] - g[:, 1::2]).reshape(-1, g.shape[2]) / math.sqrt(2))


def _scaled(noise: Numbers) -> Numbers:
    """Every coordinate over the median of its size; those that are all but zero most of the time have no scale."""
    scale, large = np.quantile(np.abs(noise), [0.5, 0.9], axis=0)
    dense = scale > large / SPARSE
    return np.asarray(noise[:, dense] / scale[dense])


def _told(part: Part, g: Numbers, clip: float | None) -> Layer:
    noise, sizes = _noise(g), np.abs(g)
    there = float(np.abs(noise).max()) > ROUNDING * float(sizes.max())
    return Layer(
        name=part.name,
        size=part.size,
        sampled=len(part.sample),
        tail=estimate(noise) if there else None,
        scaled=estimate(scaled) if there and (scaled := _scaled(noise)).size else None,
        noise=_quantiles(np.abs(noise)),
        gradient=_quantiles(sizes),
        above=None if clip is None else float((sizes > clip).mean()),
        suggested=float(np.quantile(sizes, 1 - CLIPPED)),
    )


def _quantiles(sizes: Numbers) -> dict[str, float]:
    return {str(q): float(value) for q, value in zip(QUANTILES, np.quantile(sizes, QUANTILES), strict=True)}


def _survival(noise: Numbers) -> list[tuple[float, float]]:
    """Sizes, and the share of them that are as large or larger, at ranks evenly spaced in logarithms."""
    sizes = np.sort(np.abs(noise[noise != 0]))[::-1]
    ranks = np.unique(np.geomspace(1, len(sizes), POINTS).astype(int)) if len(sizes) else np.array([], int)
    return [(float(sizes[rank - 1]), float(rank / len(sizes))) for rank in ranks]
