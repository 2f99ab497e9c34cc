"""Whether a high or a low value of a score is better: by what the user says, what the task knows, or its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from tardygrad.core.task import Task

LOWER_KEY = "run.lower_is_better"  # the key of a spec that names scores of which low values are better

_LOWER = re.compile(
    r"(.*(loss|error|mse|mae|perplexity|distance|divergence)|err|ppl|wer|cer|brier|ece|nll|bpc|bpb|bits|fid|entropy|cost|"
    r"deviance|hamming|negative|false|risk)\d*$"
)
_HIGHER = re.compile(
    r"(.*(accuracy|precision|recall)|acc|f|fbeta|auc|auroc|ap|map|iou|dice|bleu|rouge|mrr|ndcg|r|correlation|pearson|"
    r"spearman|matthews|mcc|kappa|psnr|ssim|likelihood|reward|return|match|score)\d*l?$"
)


class Directions(NamedTuple):
    """Of which scores low values are better, and of which high ones.

    >>> by_name = Directions()
    >>> [by_name.prefers_lower(name) for name in ("loss", "val_mae", "WordErrorRate", "neg_mean_squared_error", "f1")]
    [True, True, True, False, False]
    >>> by_name.prefers_lower("drift"), by_name.known("drift")
    (False, False)
    >>> Directions(lower_is_better=("drift",)).prefers_lower("drift")
    True
    """

    lower_is_better: tuple[str, ...] = ()
    higher_is_better: tuple[str, ...] = ()

    @classmethod
    def of(cls, *settings: Mapping[str, Any]) -> Self:
        """What the settings of runs say; where they contradict each other, the first one counts."""
        direction: dict[str, str] = {}  # score → the field that it is in
        for each in settings:
            for field in cls._fields:
                names = each.get(field)
                for name in names if isinstance(names, list | tuple) else ():
                    direction.setdefault(str(name), field)
        return cls(*(tuple(name for name in direction if direction[name] == field) for field in cls._fields))

    @classmethod
    def for_task(cls, task: Task | None, settings: Mapping[str, Any]) -> Self:
        """What the settings of a run say, or else what its task knows about its scores."""
        higher = task.higher_is_better() if task else {}
        low, high = ([name for name in higher if higher[name] is better] for better in (False, True))
        return cls.of(settings, {"lower_is_better": low, "higher_is_better": high})

    def prefers_lower(self, score: str) -> bool:
        """Whether low values of a score are better; False if nothing is known about it."""
        if score in self.lower_is_better or score in self.higher_is_better:
            return score in self.lower_is_better
        return by_name(score) is True

    def known(self, score: str) -> bool:
        """Whether the user, the task or the score's name says which values are better."""
        return score in (*self.lower_is_better, *self.higher_is_better) or by_name(score) is not None

    def cost(self, score: str, value: float) -> float:
        """The value of a score, negated if high values are better, so that less is better."""
        return value if self.prefers_lower(score) else -value

    def note(self, score: str) -> str | None:
        """The assumption to tell the user about, if nothing is known about a score."""
        if self.known(score):
            return None
        fix = f'set lower_is_better=["{score}"] among the settings of the run'
        return f"higher {score} is taken to be better; if lower is, {fix}"

    def main(self, scores: Iterable[str]) -> str | None:
        """The score by which models are compared: accuracy, loss, the first whose direction is known, or the first."""
        names = list(scores)
        rank = {"accuracy": 0, "loss": 1}
        return min(names, key=lambda name: rank.get(name, 2 if self.known(name) else 3), default=None)


def by_name(score: str) -> bool | None:
    """Whether low values of a score are better, by the words of its name; None if no word is known."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", score)  # CamelCase
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    if words[:1] == ["neg"]:
        found = by_name(" ".join(words[1:]))
        return None if found is None else not found
    if any(map(_LOWER.match, words)):
        return True
    return False if any(map(_HIGHER.match, words)) else None
