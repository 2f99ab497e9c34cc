"""Differential privacy of clients: contributions are clipped, and the sum of every round gets Gaussian noise.

docs/privacy.md says what this guarantees and what it assumes; runs/accountant.py computes ε.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tardygrad.core.messages import ModuleBuffers, Reason, Taken, Update
from tardygrad.errors import Invalid, check_integer, check_number, is_number

BLOCK = 4096  # coordinates with a common draw of noise, and in transit with a common scale; shards begin at multiples


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """(ε, δ) differential privacy of each client, against everyone who sees the models but not the server.

    Args:
        clip: C, the largest L2 norm of an update's contribution to a round's sum, after its weights and compensation.
        noise_multiplier: σ; every coordinate of a round's sum gets noise with the standard deviation σ · C.
        delta: δ of the guarantee; use much less than 1 / clients.
        noise_seed: makes the noise the same in every run, for experiments: whoever knows it can subtract the noise.
            None keys it by a secret of the operating system, which is kept in the checkpoints.

    >>> Privacy(clip=0.5, noise_multiplier=1.0)
    Privacy(clip=0.5, noise_multiplier=1.0, delta=1e-05, noise_seed=None)
    """

    clip: float
    noise_multiplier: float
    delta: float = 1e-5
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        check_number("clip", self.clip, above=True)
        check_number("noise_multiplier", self.noise_multiplier, above=True)
        if not (is_number(self.delta) and 0 < self.delta < 1):
            raise Invalid(f"`delta` must be above 0 and below 1, such as 1e-5, got {self.delta!r}.")
        if self.noise_seed is not None:
            check_integer("noise_seed", self.noise_seed, 0, math.inf)


class RoundNoise(NamedTuple):
    """The noise of one round."""

    key: str  # secret, in hexadecimal digits
    deviation: float  # σ · C
    start: int = 0  # the first coordinate, for a slice of the sum

    def add_to(self, total: Tensor) -> None:
        """Add the noise to a round's sum, or to a slice of it, in place."""
        for first in range(0, len(total), BLOCK):
            part, number = total[first : first + BLOCK], (self.start + first) // BLOCK
            digest = blake2b(str(number).encode(), key=bytes.fromhex(self.key), digest_size=16).digest()
            stream = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
            noise = torch.from_numpy(stream.standard_normal(len(part)) * self.deviation)
            part.copy_(part.double() + noise.to(part.device))


class HasNorms(Protocol):
    """Computes norms of contributions: a `VectorStore`."""

    def norm(self, update: Update) -> float:
        """‖contribution‖₂ of an update, before its weight."""


class GaussianMechanism:
    """Clips the contributions to a server's rounds and draws the noise on their sums; without `privacy`, neither.

    The noise is keyed by a secret and by all jobs that the rounds so far have aggregated. Rounds that are repeated from
    a checkpoint have the same noise if they aggregate the same jobs, and independent noise if they do not, as after a
    crash in real time: with the same noise, the difference of the two models would show the difference of the updates.
    """

    def __init__(self, privacy: Privacy | None, seed: int, module_buffers: ModuleBuffers | None = None) -> None:
        if privacy and module_buffers is not None:
            fix = "Use GroupNorm or LayerNorm."
            raise Invalid(f"`privacy` needs a model without buffers, such as BatchNorm's, which get no noise. {fix}")
        self.privacy, self.key = privacy, ""
        if privacy:
            noise_seed = privacy.noise_seed
            self.key = secrets.token_hex(32) if noise_seed is None else _digest(f"{seed}:{noise_seed}")
        self.history = ""  # a digest of the jobs that the rounds so far have aggregated

    def norm_or_reason(self, validated: float | Reason) -> float | Reason:
        """‖δ‖ or the reason to refuse an update; NaN for a private update that is not finite.

        A refusal would depend on the client's data, and so would the rounds of all later updates: this one counts as 0.
        """
        return math.nan if self.privacy and validated == "not finite" else validated

    def clipped_weight(self, taken: Taken, vectors: HasNorms) -> float:
        """The weight w of a contribution, reduced so that ‖w · contribution‖ ≤ C; 0 if that is not finite."""
        if self.privacy is None:
            return taken.weight
        norm = math.nan if math.isnan(taken.norm) else abs(taken.weight) * vectors.norm(taken.update)
        if not math.isfinite(norm):
            return 0.0
        return taken.weight if norm <= self.privacy.clip else taken.weight * (self.privacy.clip / norm)

    def noise(self, t: int, taken: Sequence[Taken]) -> RoundNoise | None:
        """The noise of round t, which aggregates these updates."""
        if self.privacy is None:
            return None
        jobs = [(each.update.client, each.update.serial, each.update.round) for each in taken]
        self.history = _digest(f"{self.history}:{t}:{jobs}")
        return RoundNoise(_digest(self.history, self.key), self.privacy.noise_multiplier * self.privacy.clip)

    def snapshot(self) -> dict[str, Any] | None:
        """The state, as plain data; it contains the secret."""
        return {"key": self.key, "history": self.history} if self.privacy else None

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from a snapshot."""
        if state:
            self.key, self.history = state["key"], state["history"]


def _digest(text: str, key: str = "") -> str:
    return blake2b(text.encode(), key=bytes.fromhex(key), digest_size=32).hexdigest()
