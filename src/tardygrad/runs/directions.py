"""Whether a high or a low value of a score is good: as the user says, or else by the score's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from tardygrad.core.task import KnowsDirections

LOWER = "run.lower_is_better"  # the key that says it

_LOWER = """

    loss error err perplexity ppl distance divergence deviance mse mae mape smape rmse rmsle msle nmse nrmse wer
    cer mer wil ter der eer brier ece mce ace nll bpc bpb bpd bits crps fid kid hamming kl entropy cost risk regret
    fpr fnr far frr lpips latency pinball rank false
"""
_HIGHER = """

    accuracy acc f1 f2 fbeta auc auroc auprc ap map precision recall sensitivity specificity iou miou dice jaccard
    bleu rouge meteor chrf mrr ndcg r2 correlation pearson spearman kendall matthews mcc kappa psnr ssim snr
    likelihood reward return similarity tpr tnr ppv npv top1 top5 hits em match elbo gain
"""
_LOWER_WORDS, _HIGHER_WORDS = frozenset(_LOWER.split()), frozenset(_HIGHER.split())
_LONG = re.compile(r"(loss|error|mse|mae|perplexity|distance|divergence|(accuracy|precision|recall))$")
_NEGATED = ("neg", "negative", "minus")


class Directions(NamedTuple):
    """Which scores are good when they are low.

    >>> words = Directions()
    >>> [words.lower(name) for name in ("loss", "val_mae", "WordErrorRate", "neg_mean_squared_error", "f1")]
    [True, True, True, False, False]
    >>> words.lower("drift"), words.known("drift"), Directions(lower_is_better=("drift",)).lower("drift")
    (False, False, True)
    """

    lower_is_better: tuple[str, ...] = ()
    higher_is_better: tuple[str, ...] = ()

    @classmethod
    def of(cls, *settings: Mapping[str, Any]) -> Self:
        """What the settings of runs say; where they contradict each other, the first one counts."""
        found: dict[str, str] = {}
        for each in settings:
            for way in cls._fields:
                names = each.get(way)
                for name in names if isinstance(names, list | tuple) else ():
                    found.setdefault(str(name), way)
        return cls(*(tuple(name for name, way in found.items() if way == field) for field in cls._fields))

    @classmethod
    def for_task(cls, task: object, settings: Mapping[str, Any]) -> Self:
        """What the settings of a run say, and else what its task knows of its scores."""
        higher = task.higher_is_better() if isinstance(task, KnowsDirections) else {}
        low, high = ([name for name in higher if higher[name] is good] for good in (False, True))
        return cls.of(settings, {"lower_is_better": low, "higher_is_better": high})

    def lower(self, score: str) -> bool:
        """Whether a low value is good; a high one is if nothing is known of the score."""
        if score in self.lower_is_better or score in self.higher_is_better:
            return score in self.lower_is_better
        return by_name(score) is True

    def known(self, score: str) -> bool:
        """Whether the user or the score's name says which values are good."""
        return score in (*self.lower_is_better, *self.higher_is_better) or by_name(score) is not None

    def cost(self, score: str, value: float) -> float:
        """A score as a number of which less is better."""
        return value if self.lower(score) else -value

    def note(self, score: str) -> str | None:
        """What to tell a user about a score of which nothing is known."""
        if self.known(score):
            return None
        return f'higher {score} is taken to be better; if lower is, set {LOWER}=["{score}"]'

    def main(self, scores: Iterable[str]) -> str | None:
        """The score by which models are compared: accuracy, loss, the first whose direction is known, or the first."""
        names = list(scores)
        rank = {"accuracy": 0, "loss": 1}
        return min(names, key=lambda name: rank.get(name, 2 if self.known(name) else 3), default=None)


def by_name(score: str) -> bool | None:
    """Whether a low value of a score is good, by the last word of its name that is known; None if none is."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", score)
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    lower = False if "score" in words else None  # of a Brier score, the other word says it
    for word in words:
        bare = word.rstrip("0123456789")
        if long := _LONG.search(word):
            lower = long.group(2) is None
        elif not {word, bare}.isdisjoint(_LOWER_WORDS | _HIGHER_WORDS):
            lower = not {word, bare}.isdisjoint(_LOWER_WORDS)
    return lower if lower is None or words[0] not in _NEGATED else not lower
