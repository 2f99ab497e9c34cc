"""GLUE tasks: tokens, features, frozen layers, scores and caches, on a small BERT; and on MiniLM where it is there."""

import math
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import tardygrad as tg
from experiments.tasks import pretrained_text
from experiments.tasks.glue import FORMS, load, pearson
from experiments.tasks.glue import _scores as scores_of
from experiments.tasks.glue import glue as make
from experiments.tests.text_files import examples, write_bert, write_parquet, write_task
from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.spec import spec

SHARED = Path(__file__).parents[2].parent / "shared/data/glue"
METHOD = sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=1, local_steps=1)

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All eight tasks and a small BERT."""
    made = tmp_path_factory.mktemp("glue")
    for name in FORMS:
        write_task(made, name, examples(name, 40), examples(name, 13, seed=1))
    write_bert(made / "bert")
    return made


@pytest.fixture
def small(folder, tmp_path):
    """A task of the small BERT, cached on its own."""

    def build(**settings):
        given = {"clients": 4, "name": "rte", "data": str(folder), "model": str(folder / "bert"), "max_length": 24}
        return make(**given | {"cache": str(tmp_path / "cache")} | settings)

    return build


def job(task, seed=0, **settings):
    given = {"client": 1, "serial": 0, "round": 0, "x": task.init(seed), "steps": 3, "epochs": None, "seed": seed}
    return Job(**given | settings)


@pytest.mark.parametrize(("name", "train"), zip(FORMS, cycle(["all", "head"])))
def test_every_task_trains_and_has_its_scores(name, train, small):
    task = small(name=name, train=train)
    scores = task.evaluate(task.init(0), None)
    extra = {"cola": ["accuracy", "matthews"], "mrpc": ["accuracy", "f1"], "qqp": ["accuracy", "f1"]}
    assert list(scores) == ["loss", *extra.get(name, ["pearson"] if name == "stsb" else ["accuracy"])]
    assert all(math.isfinite(value) for value in scores.values())
    update = work(job(task), task, METHOD)
    assert update.steps == 3
    assert update.delta.abs().max() > 0


def test_a_task_says_which_rows_of_which_files_it_has(small):
    task = small(name="cola", rows=20, test_rows=5)
    assert repr(task) == (
        f"Glue('cola', parameters={task.parameters}, clients=4, "
        "train='20 rows of cola/train.parquet', test='5 rows of cola/validation.parquet')"
    )
    assert len(task.test[-1]) == 5
    assert sum(len(rows) for rows in task.data.rows) == 20
    other = small(name="cola", rows=20, test_rows=5, seed=7)
    assert torch.equal(other.test[0], task.test[0])
    assert not torch.equal(other.data.data[0], task.data.data[0])


def test_batches_are_cut_to_their_longest_row_and_that_changes_nothing(small):
    task = small()
    ids, mask, types, _ = task.test
    module = task._template.eval()
    seen = []
    module.model.register_forward_pre_hook(lambda _, args: seen.extend(arg.shape for arg in args))
    short = mask.sum(1) < mask.shape[1]
    with torch.no_grad():
        cut = module(ids[short], mask[short], types[short])
        full = module.model(
            input_ids=ids[short].long(), attention_mask=mask[short].long(), token_type_ids=types[short].long()
        ).logits
    assert torch.allclose(cut, full, atol=1e-5)
    assert seen[0][1] == int(mask[short].sum(1).max()) < ids.shape[1]
    lengths = mask.sum(1)
    assert torch.equal(lengths, lengths.sort().values)


def test_tokens_are_those_of_the_tokenizer(small, folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    task = small(max_length=16)
    ids, mask, types, target = task.data.data
    for row, (texts, label) in enumerate(examples("rte", 40)):
        one = tokenizer(*texts, truncation=True, max_length=16)
        length = len(one["input_ids"])
        assert ids[row, :length].tolist() == one["input_ids"]
        assert types[row, :length].tolist() == one["token_type_ids"]
        assert mask[row].tolist() == [1] * length + [0] * (ids.shape[1] - length)
        assert (ids[row, length:] == tokenizer.pad_token_id).all()
        assert target[row] == label
    assert (ids.dtype, mask.dtype, types.dtype) == (torch.int32, torch.uint8, torch.uint8)
    assert "unk" not in tokenizer.convert_ids_to_tokens(ids[0].tolist())


def test_features_are_means_of_the_last_states(small, folder):
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder / "bert").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    features = small(train="head").data.data[0]

    def mean(text):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return states.mean(0) / states.mean(0).norm() * 4  # √16

    for row, ((first, second), _) in enumerate(examples("rte", 40)[:6]):
        u, v = mean(first), mean(second)
        assert torch.allclose(features[row], torch.cat([u, v, (u - v).abs(), u * v]), atol=1e-4)


def test_scores_are_divided_by_five_and_learnt(small):
    task = small(name="stsb", train="head", clients=1, batch_size=40)
    target = task.data.data[-1]
    assert target.dtype == torch.float32
    assert 0 <= target.min() < target.max() <= 1
    learner = sgdclip(local_lr=0.005, local_clip=math.inf, lr=1.0, buffer=1, local_steps=1)
    one = job(task, client=0, steps=500)
    update = work(one, task, learner)
    last = task.gradient(one.x + update.delta, next(task.batches(one)), None)[0]
    assert float(last) < float(target.var()) / 2


def test_settings_are_chosen_on_rows_that_nobody_trains_or_tests_on(small):
    whole = small(rows=40)
    chosen, reported = (small(rows=40, validation_rows=10, score_on=on) for on in ("validation", "test"))

    def rows(tensors):
        return {tuple(ids.tolist()) for ids in tensors[0]}

    assert repr(chosen).endswith("train='30 rows of rte/train.parquet', test='10 rows of rte/train.parquet')")
    train, apart, test = rows(chosen.data.data), rows(chosen.test), rows(reported.test)
    assert rows(reported.data.data) == train
    assert train | apart == rows(whole.data.data)
    assert not train & apart
    assert test == rows(whole.test)


def test_batches_of_similar_length_have_all_rows_once_in_random_order(small):
    task = small(clients=1, batch_size=8, group_by_length=True)
    epochs = []
    for serial in (0, 1):
        batches = [batch.data[0] for batch in task.batches(job(task, client=0, serial=serial, steps=None, epochs=1))]
        lengths = [mask.sum(1).tolist() for _, mask, *_ in batches]
        spans = sorted((min(each), max(each)) for each in lengths)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert sorted(len(each) for each in lengths) == [8] * 5
        epochs.append(lengths)
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])


class Counter:
    def __init__(self, monkeypatch, name):
        self.calls, real = 0, getattr(pretrained_text, name)

        def counted(*args):
            self.calls += 1
            return real(*args)

        monkeypatch.setattr(pretrained_text, name, counted)


@pytest.mark.parametrize(("train", "step"), [("all", "_tokenise"), ("head", "_embed")])
def test_tokens_and_features_are_made_once(train, step, small, tmp_path, monkeypatch):
    counter = Counter(monkeypatch, step)
    first = small(train=train)
    assert counter.calls == 2  # to train on, and to test on
    again = small(train=train)
    assert counter.calls == 2
    assert torch.equal(first.data.data[0], again.data.data[0])
    small(train=train, max_length=10)
    assert counter.calls == 4
    small(train=train, max_length=10, clients=2, batch_size=3)
    assert counter.calls == 4
    for file in (tmp_path / "cache").glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-7])
    mended = small(train=train)
    assert counter.calls == 6
    assert torch.equal(first.data.data[0], mended.data.data[0])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clients": 0}, "`clients` must be a whole number, 1 or more, got 0."),
        ({"max_length": 4}, "`max_length` must be a whole number, 8 or more, got 4."),
        ({"train": "last-1"}, "`train` must be one of all, head, got 'last-1'."),
        (
            {"attention": "eager", "train": "head"},
            "`attention` has no effect with train='head', got 'eager'. Leave out one of the two.",
        ),
        ({"max_length": 65}, "`max_length` must be at most the model's limit (64 tokens), got 65."),
    ],
)  # fmt: skip
def test_errors_say_the_rule_the_value_and_the_fix(settings, text, small):
    with pytest.raises(Invalid) as caught:
        small(**settings)
    assert str(caught.value) == text


def test_pearsons_correlation_is_that_of_numpy_and_zero_for_constant_answers():
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.standard_normal((2, 30))
        assert pearson(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert pearson(torch.full((3,), 0.1), torch.tensor([0.1, 0.2, 0.3])) == 0.0
    assert math.isnan(pearson(torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0])))


def test_scores_by_hand():
    # hits 2, predicted 3, targets 2; (2·1 − 1·0) / √(3·2·1·2)
    output, target = torch.eye(2)[[1, 1, 1, 0]], torch.tensor([1, 1, 0, 0])
    assert scores_of("f1", output, target) == {"accuracy": 0.75, "f1": pytest.approx(4 / 5)}
    assert scores_of("matthews", output, target)["matthews"] == pytest.approx(2 / math.sqrt(12))
    constant = torch.eye(2)[[0, 0, 0, 0]]
    assert scores_of("f1", constant, target)["f1"] == scores_of("matthews", constant, target)["matthews"] == 0.0
    assert scores_of("f1", constant, torch.zeros(4, dtype=torch.int64))["f1"] == 0.0


def test_the_spec_runs_any_task_of_a_folder(folder, tmp_path):
    given = [f"task.data={folder}", f"task.model={folder / 'bert'}", f"task.cache={tmp_path}", "task.max_length=24"]
    for name in ("rte", "stsb"):
        loaded = spec.load(Path(__file__).parents[1] / "glue.toml", [*given, f"task.name={name}", "run.rounds=2"])
        method, task, fleet, _, length = loaded.build()
        last = tg.simulate(method, task, fleet, **length.settings()).metrics[-1]
        assert ("test_accuracy" in last, "test_pearson" in last) == (name == "rte", name == "stsb")


def test_samples_and_pools_stand_in_for_what_is_absent_but_never_leak(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.tasks.glue.LARGE", 4)
    rows = [((f"a {i}", f"b {i}"), i % 2) for i in range(10)]
    for name, test in (("qnli", "validation"), ("qqp", "validation_heldout")):
        for file, some in (("train_5k", rows[:4]), ("train_pool", rows), (test, rows[4:])):
            write_parquet(tmp_path / name / f"{file}.parquet", name, some)
    sources = [load(name, str(tmp_path), count, 0)[0].source for name in ("qnli", "qqp") for count in (3, None, "all")]
    pool = ["qnli/train_pool.parquet", *["qqp/train_5k.parquet"] * 3]
    assert sources == ["qnli/train_5k.parquet", "qnli/train_5k.parquet", *pool]
    assert len(load("qnli", str(tmp_path), 9, 0)[0]) == 9
    assert load("qqp", str(tmp_path), None, 0)[1].source == "qqp/validation_heldout.parquet"
    with pytest.raises(Invalid, match=r"`rows` must be at most the 4 of qqp/train_5k.parquet, got 9. Use rows='all'."):
        load("qqp", str(tmp_path), 9, 0)
    for part in (0, 1):
        write_parquet(tmp_path / f"qnli/train-0000{part}-of-00002.parquet", "qnli", rows[5 * part : 5 * part + 5])
    train, _ = load("qnli", str(tmp_path), "all", 0)
    assert train.source == "qnli/train-00000-of-00002.parquet and 1 more"
    assert train.texts[0] == [f"a {i}" for i in range(10)]


ROWS = {
    "mnli": (5000, 9815), "qnli": (5000, 5463), "qqp": (5000, 4999), "rte": (2490, 277), "sst2": (5000, 872),
    "mrpc": (3668, 408), "cola": (8551, 1043), "stsb": (5749, 1500),
}  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="GLUE is not on this machine")
def test_the_real_files_have_the_official_numbers_of_rows():
    for name, counts in ROWS.items():
        train, test = load(name, str(SHARED), None, 0)
        assert (len(train), len(test)) == counts
        assert all(text.strip() for column in test.texts for text in column)
        if name == "qqp":  # cut out of the pool that train_5k is from
            assert not set(zip(*train.texts, strict=True)) & set(zip(*test.texts, strict=True))
