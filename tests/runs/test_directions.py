"""Scores of which low values are good, and tasks without a loss among their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanAbsoluteError

import tardygrad as tg
from tardygrad.doctor.try_change import goal_of, recorded_curve
from tardygrad.report.comparison import compare as compared_runs
from tardygrad.report.comparison import comparison_blocks, headline
from tardygrad.report.groups import grouped
from tardygrad.report.loader import read
from tardygrad.runs.directions import by_name
from tardygrad.runs.history import read_history

LOWER = """loss wer cer brier brier_score mae mse rmse perplexity error fid bpc nll ece hamming_loss val_loss top1_error
    MeanSquaredError word_error_rate bits_per_byte negative_log_likelihood kl_divergence HammingDistance
    false_positive_rate"""
HIGHER = """accuracy f1 macro_f1 AUROC recall@10 rouge1 rougeL bleu4 iou r2 R2Score MulticlassAccuracy BinaryF1Score
    neg_mean_squared_error log_likelihood exact_match balanced_accuracy_score precision_at_5"""

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -2.0, 0.5]) + 1.0
FLEET = tg.Fleet.paper(clients=4)


def test_names_say_which_values_are_good() -> None:
    assert [name for name in LOWER.split() if by_name(name) is not True] == []
    assert [name for name in HIGHER.split() if by_name(name) is not False] == []
    assert [name for name in ("drift", "churn", "x") if by_name(name) is not None] == []


def mean_absolute(output: Tensor, target: Tensor) -> Tensor:
    return F.l1_loss(output.squeeze(1), target)


def task(name: str) -> tg.TorchTask:
    def evaluate(module: nn.Module, test: Any) -> dict[str, float]:
        return {name: float(mean_absolute(module(test[0]), test[1]))}

    torch.manual_seed(0)
    data = tg.shard((X, Y), clients=4)
    return tg.TorchTask(nn.Linear(3, 1), data=data, loss=mean_absolute, test=(X, Y), evaluate=evaluate)


def method(lr: float) -> tg.Method:
    return tg.clip2(local_lr=0.3, local_clip=10.0, lr=lr, clip=10.0, buffer=2, local_steps=2)


CONTENDERS = {"slow": method(0.001), "fast": method(1.0)}


@pytest.mark.parametrize(("score", "said"), [("wer", {}), ("drift", {"lower_is_better": ["drift"]})])
def test_compare_and_sweep_rank_scores_of_which_low_values_are_good(score: str, said: dict[str, Any]) -> None:
    own = task(score)
    found = tg.compare(CONTENDERS, task=own, fleet=FLEET, rounds=10, seeds=2, target=1.0, **said)
    assert found.score == score
    assert found.result().startswith(f"fast has the best mean test {score}")
    assert "(lower is better)" in str(found)
    assert "taken to be better" not in str(found)
    assert [found.times[name] is None for name in CONTENDERS] == [True, False]

    def make_run(lr: float, seed: int) -> tg.Run:
        return tg.begin(method(lr), own, FLEET, rounds=10, seed=seed, evaluate_every=5, **said)

    swept = tg.sweep(make_run, {"lr": [0.001, 1.0, 0.01]})
    assert swept.best == {"lr": 1.0}
    assert f"best by test {score} (lower is better)" in str(swept)
    assert score in swept.to_pandas()
    assert swept.workable == pytest.approx(1 / 3)
    assert tg.sweep(make_run, {"lr": [0.001, 1.0]}, target=1.0).best == {"lr": 1.0}


def test_an_unknown_score_is_taken_to_be_better_when_higher_and_says_so() -> None:
    found = tg.compare(CONTENDERS, task=task("drift"), fleet=FLEET, rounds=10, seeds=2)
    assert (
        'higher drift is taken to be better; if lower is, set lower_is_better=["drift"] among the settings of the run'
        in str(found)
    )
    with pytest.raises(tg.Invalid, match="got 'drift' in both lists"):
        tg.simulate(method(1.0), task("drift"), FLEET, rounds=1, lower_is_better=["drift"], higher_is_better=["drift"])
    with pytest.raises(tg.Invalid, match="`higher_is_better` must be names of scores, got 1"):
        tg.simulate(method(1.0), task("drift"), FLEET, rounds=1, higher_is_better=[1])  # type: ignore[list-item]


@pytest.mark.parametrize("said", [{}, {"lower_is_better": ["drift"]}])
def test_reports_and_the_doctor_follow_what_the_run_says(tmp_path: Path, said: dict[str, Any]) -> None:
    own, paths = task("drift"), []
    for name, contender in CONTENDERS.items():
        paths.append(tmp_path / name)
        tg.simulate(contender, own, FLEET, rounds=10, evaluate_every=5, out=paths[-1], **said)
    groups = grouped([read(path) for path in paths])
    compared = compared_runs(groups)
    notes = " ".join(str(block) for block in comparison_blocks(compared))
    assert ("higher drift is taken to be better" in notes.lower()) == (not said)
    assert ("lower is better" in notes) == bool(said) == (not compared.higher)
    assert headline(groups, compared)
    history = read_history(paths[1])
    score, curve = recorded_curve(history)
    goal = goal_of(history, score, [(0.0, 3.0 if said else -3.0), *curve])
    assert (goal.time < float("inf")) == bool(said)


def test_metrics_say_themselves_which_values_are_good() -> None:
    metrics = {"drift": MeanAbsoluteError()}
    own = tg.TorchTask(
        nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), data=tg.shard((X, Y), clients=4), loss=F.l1_loss, test=(X, Y),
        scores=metrics,
    )  # fmt: skip
    run = tg.begin(method(1.0), own, FLEET, rounds=1)
    assert run.settings["lower_is_better"] == ("drift",)
    again = tg.begin(method(1.0), own, FLEET, rounds=1, higher_is_better=["drift"])
    assert (again.settings["lower_is_better"], again.settings["higher_is_better"]) == ((), ("drift",))
