"""What the rounds of a private run have revealed about its clients, as ε; docs/privacy.md derives it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tardygrad.core.privacy import Privacy
from tardygrad.errors import Invalid

LARGEST = 500.0  # the largest ε that opacus finds


class Accountant:
    """Adds up the rounds of a private run. Needs the extra `privacy`.

    With k updates in a round, a client changes the sum by at most k · C, under noise of σ · C: the round is k/σ-GDP
    (Gaussian differential privacy) for this client, and all rounds together are μ-GDP with μ² = Σ (k/σ)². Nothing is
    assumed about how clients are sampled.

    Args:
        privacy: σ and δ.

    >>> accountant = Accountant(Privacy(clip=0.1, noise_multiplier=4.0))
    >>> accountant.add((0, 1), (1, 1), (0, 2))
    >>> accountant.worst, round(accountant.mu, 3), round(accountant.epsilon, 2)
    (1, 0.559, 2.26)
    """

    def __init__(self, privacy: Privacy) -> None:
        _gdp()
        self.privacy = privacy
        self.squares: Counter[int] = Counter()  # client → Σ k²

    def add(self, *rounds: Iterable[int]) -> None:
        """Add rounds, each as the clients of its updates."""
        for clients in rounds:
            for client, k in Counter(clients).items():
                self.squares[client] += k * k

    @property
    def worst(self) -> int | None:
        """The client about which the most is revealed; None before the first round."""
        return max(self.squares, key=lambda client: self.squares[client], default=None)

    @property
    def mu(self) -> float:
        """μ of that client."""
        return math.sqrt(max(self.squares.values(), default=0)) / self.privacy.noise_multiplier

    @property
    def epsilon(self) -> float:
        """ε of that client: the guarantee for all; inf if it is above 500."""
        return epsilon(self.mu, self.privacy.delta)


@lru_cache(maxsize=1024)
def epsilon(mu: float, delta: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ) differentially private.

    It solves δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

    >>> round(epsilon(1.0, 1e-5), 3), epsilon(1e-9, 1e-5), epsilon(100.0, 1e-5)
    (4.377, 0.0, inf)
    """
    gdp = _gdp()
    if mu == 0 or gdp.delta_eps_mu(eps=0.0, mu=mu) <= delta:
        return 0.0
    return math.inf if gdp.delta_eps_mu(eps=LARGEST, mu=mu) > delta else float(gdp.eps_from_mu(mu=mu, delta=delta))


def guarantee(epsilon: float | None, delta: float | None = None) -> str:
    """ε and δ as text; records have None for an infinite ε.

    >>> guarantee(3.14159, 1e-5), guarantee(None, 1e-5)
    ('ε = 3.14, δ = 1e-05', 'ε > 500, δ = 1e-05')
    """
    infinite = epsilon is None or math.isinf(epsilon)
    return (f"ε > {LARGEST:g}" if infinite else f"ε = {epsilon:.3g}") + ("" if delta is None else f", δ = {delta:g}")


def _gdp() -> Any:
    handlers = logging.root.handlers
    before = list(handlers)
    try:
        from opacus.accountants.analysis import gdp  # here, because it takes seconds to import
    except ImportError as error:
        raise Invalid(
            "`privacy` needs opacus to compute ε. Use pip install -c constraints.txt -e '.[privacy]'."
        ) from error
    finally:
        handlers[:] = before  # opacus adds one, which would print every message of other packages
    return gdp
