"""Scores of a model on a test set, batch by batch: only sums are kept, unless a score needs all outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tardygrad.core.task import check_score_names
from tardygrad.errors import Invalid
from tardygrad.tasks.forward import Result, rows_of

Scores = Callable[[Tensor, Tensor], dict[str, float]]
"""(outputs, targets) of the whole test set to scores by name."""


class Metrics:
    """The mean loss and scores, collected batch by batch.

    Args:
        scores: a function of all outputs and targets; or metrics by name, objects with `update(output, target)`,
            `compute()` and `reset()` such as those of torchmetrics; None is the accuracy, if targets are classes.
        token_loss: whether losses are means over tokens if targets are rows of integers, as in causal language models:
            then tokens are their weights, and the perplexity is a score.
    """

    def __init__(self, scores: Scores | Mapping[str, Any] | None, *, token_loss: bool) -> None:
        self.scores = scores if callable(scores) else None
        self.metrics = {name: copy.deepcopy(m) for name, m in scores.items()} if isinstance(scores, Mapping) else {}
        for metric in self.metrics.values():
            metric.reset()
        self.token_loss, self.tokens = token_loss, False
        self.batches = 0
        self.loss = self.weight = 0.0
        self.right = 0
        self.classes = False
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []

    def add(self, batch: Any, result: Result, rows: int | None = None) -> None:
        """Add a batch.

        Args:
            rows: the number of rows; ignored if the targets are classes; None: the length of the first tensor.
        """
        output, target = result.output, result.target
        self.batches += 1
        self.tokens = (
            self.token_loss and isinstance(target, Tensor) and target.dim() > 1 and not target.is_floating_point()
        )
        self.classes = _classes(output, target)
        rows = len(target) if self.classes else rows or rows_of(batch) or 1  # a batch may begin with other tensors
        weight = int((target[:, 1:] != -100).sum()) if self.tokens else rows
        self.loss, self.weight = self.loss + float(result.loss) * weight, self.weight + weight
        self.right += int((output.argmax(1) == target).sum()) if self.classes else 0
        if (self.scores or self.metrics) and output is None:
            raise Invalid("`scores` need outputs, and that of the module has no `logits`. Give the task evaluate=...")
        for metric in self.metrics.values():
            metric.update(output, target)
        if self.scores:
            self.outputs.append(output)
            self.targets.append(target)

    def compute(self) -> dict[str, float]:
        """The scores of all batches."""
        if not self.batches:
            raise Invalid("`test` must have at least one batch, got none.")
        found = {"loss": self.loss / self.weight if self.weight else math.nan}
        if self.tokens:
            found["perplexity"] = perplexity(found["loss"])
        if self.scores:
            return found | checked(self.scores(torch.cat(self.outputs), torch.cat(self.targets)), "scores")
        if self.metrics:
            return found | checked({name: metric.compute() for name, metric in self.metrics.items()}, "scores")
        return found | {"accuracy": self.right / self.weight} if self.classes else found


def check_scores(scores: Any) -> None:
    """Raise `Invalid` unless `scores` are a function, or metrics by name."""
    metrics = list(scores.values()) if isinstance(scores, Mapping) else []
    for value in metrics:
        if not all(callable(getattr(value, name, None)) for name in ("update", "compute", "reset")):
            rule = "metrics in `scores` must have `update`, `compute` and `reset`, as those of torchmetrics"
            fix = ""
            if callable(value):
                fix = " Use a function of all outputs and targets for all scores: scores=lambda y, t: {'NAME': ...}."
            raise Invalid(f"{rule}, got {type(value).__name__}.{fix}")
    if not (scores is None or callable(scores) or metrics):
        raise Invalid(f"`scores` must be a function of (outputs, targets), or metrics by name, got {scores!r}.")


def perplexity(loss: float) -> float:
    """exp(loss), or inf where that is too large."""
    return math.exp(loss) if loss < 700 else loss if math.isnan(loss) else math.inf


def checked(scores: Any, function: str) -> dict[str, float]:
    """The scores that a function of the user's returned, as numbers."""
    if not isinstance(scores, Mapping):
        raise Invalid(f"`{function}` must return scores by name, such as {{'loss': 0.5}}, got {type(scores).__name__}.")
    check_score_names(map(str, scores))
    try:
        return {str(name): float(value) for name, value in scores.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise Invalid(f"`{function}` must return one number for each score: {error}.") from error


def _classes(output: Any, target: Any) -> bool:
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.dim() != 2 or target.dim() != 1:
        return False
    if output.shape[1] == 1:  # one logit: its sign is the class
        return False
    return not target.is_floating_point() and target.dtype != torch.bool
