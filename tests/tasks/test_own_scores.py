"""Scores of one's own, in evaluations and in summaries."""

import math

import torch
from torch import nn

import tardygrad as tg
from tardygrad.tasks import TorchTask, shard


def test_a_task_from_any_module_takes_scores_of_its_own():
    held = (torch.arange(10.0)[:, None], torch.arange(10) % 2)
    seen = []

    def scores(outputs, targets):
        seen.append((outputs, targets))
        return {"f1": 0.5}

    given = {"loss": nn.functional.cross_entropy, "data": shard(held, clients=2), "test": held, "evaluate_batch": 3}
    task = TorchTask(nn.Linear(1, 2), scores=scores, **given)
    found = task.evaluate(task.init(0), None)
    assert list(found) == ["loss", "f1"]
    ((outputs, targets),) = seen
    assert outputs.shape == (10, 2)
    assert torch.equal(targets, held[1])
    plain = TorchTask(task._template, **given)
    assert plain.evaluate(plain.init(0), None)["loss"] == found["loss"]


def test_a_summary_says_every_score():
    held = (torch.arange(10.0)[:, None], torch.arange(10) % 2)
    given = {"loss": nn.functional.cross_entropy, "data": shard(held, clients=2), "test": held}
    task = TorchTask(nn.Linear(1, 2), scores=lambda outputs, targets: {"f1": 0.25, "bits_per_byte": math.nan}, **given)
    method = tg.sgdclip(lr=1.0, local_lr=0.01, local_clip=0.1, buffer=1, local_steps=1)
    summary = tg.simulate(method, task, tg.Fleet.paper(clients=2), rounds=3).summary()
    assert summary.scores["f1"] == 0.25
    assert ", f1 0.25, bits per byte nan" in str(summary)
    assert ", f1 0.25, bits per byte not finite" in str(summary._replace(scores={"f1": 0.25, "bits_per_byte": None}))
    own = summary._replace(scores={"f1": 0.25}, accuracy=0.5, loss=None)  # of an evaluation without a loss
    assert str(own).splitlines()[2] == "test accuracy 50.0%, f1 0.25"
    assert str(own._replace(accuracy=None, score_round=2)).splitlines()[2] == "test f1 0.25 (of round 2)"
