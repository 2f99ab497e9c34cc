"""Groups of clients with the same runtime and the same link to the server."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tardygrad.errors import Invalid, check_integer, checked_class
from tardygrad.fleet.runtimes import Distribution, Runtime, check_rule


@checked_class
@dataclass(frozen=True)
class Link:
    """The network between a client and the server: latency in seconds each way, bytes per second down and up.

    With a `sigma` the bandwidth varies: each message has that of the link times exp(Normal(0, sigma²)).
    """

    latency: float = 0.0
    down: float = math.inf
    up: float = math.inf
    sigma: float = 0.0

    def __post_init__(self) -> None:
        valid = 0 <= self.latency < math.inf and self.down > 0 and self.up > 0
        check_rule(valid, self, "0 <= latency < inf, down > 0, up > 0")
        check_rule(0 <= self.sigma < math.inf, self, "0 <= sigma < inf")


@checked_class
@dataclass(frozen=True)
class Group:
    """Clients of one class, with the same runtime, link and dropout; None: that of the fleet."""

    name: str
    clients: int
    runtime: Distribution | Runtime
    link: Link = Link()
    dropout: float | None = None

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 0)
        if self.dropout is not None:
            check_dropout(self.dropout)


def check_dropout(value: float) -> None:
    """Raise `Invalid` unless the value can be a dropout."""
    if not 0 <= value < 1:
        raise Invalid(f"`dropout` must be a probability, 0 or more and below 1, got {value!r}.")
