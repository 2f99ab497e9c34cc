"""The last layers alone, on what enters them: the same vector, answers and gradients as those of the whole network."""

import copy

import pytest
import torch

from experiments.tasks import trainable_layers
from experiments.tasks.cifar10 import cifar10
from experiments.tasks.glue import glue
from experiments.tests.test_tinyvit import folder as tiny  # noqa: F401
from experiments.tests.text_files import examples, write_bert, write_task
from tardygrad.core.messages import Job
from tests.tasks.picture_files import RGB, striped, write_binary

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

SMALL = {"num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 60, "max_position_embeddings": 70}
SMALL |= {"pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 3, "hidden_size": 16, "embedding_size": 8}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """RTE, and small text models of several kinds with one tokenizer."""
    made = tmp_path_factory.mktemp("texts")
    write_task(made, "rte", examples("rte", 40), examples("rte", 13, seed=1))
    write_bert(made / "Bert", layers=3)
    for name in ("Roberta", "DistilBert", "Electra", "GPT2"):
        write_bert(made / name)
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SMALL))
        model.save_pretrained(made / name)
    return made


@pytest.fixture
def rte(texts, tmp_path):
    def build(model="Bert", train="last-1", **settings):
        given = {"clients": 2, "name": "rte", "data": str(texts), "model": str(texts / model), "max_length": 24}
        return glue(train=train, **given | {"cache": str(tmp_path / "cache"), "batch_size": 8} | settings)

    return build


@pytest.fixture
def pictures(tmp_path, tiny):  # noqa: F811
    write_binary(tmp_path / "color", striped(24, RGB), striped(10, RGB))

    def build(train="last-1", **settings):
        given = {"clients": 2, "data": str(tmp_path / "color"), "cache": str(tmp_path / "cache"), "batch_size": 4}
        return cifar10(pretrained=str(tiny), resize=32, train=train, **given | settings)

    return build


def uncut(build, monkeypatch, tmp_path, *args, **settings):
    """The same task on the whole network."""
    with monkeypatch.context() as patch:
        patch.setattr(trainable_layers, "cut", lambda *_: False)
        return build(*args, cache=str(tmp_path / "uncut"), **settings)


def compare(task, plain):
    assert task.data.data[0].is_floating_point()
    assert not plain.data.data[0].is_floating_point()
    assert sum(p.numel() for p in task._template.parameters()) < sum(p.numel() for p in plain._template.parameters())
    x = task.init(3)
    assert torch.equal(x, plain.init(3))
    job = Job(1, 0, 0, x, 3, None, 0)
    for features, rows in zip(task.batches(job), plain.batches(job), strict=True):
        (loss, g), (same, h) = task.gradient(x, features, None), plain.gradient(x, rows, None)  # dropout included
        assert torch.allclose(loss, same, atol=1e-5)
        assert torch.allclose(g, h, atol=1e-5)
        assert g.abs().max() > 1e-3
        x = x - g
    with torch.no_grad():
        for module in (task._template, plain._template):
            module.eval()
        said = task._template(*task.test[:-1])
        assert torch.allclose(said, plain._template(*plain.test[:-1]), atol=1e-5)
    scores, others = task.evaluate(x, None), plain.evaluate(x, None)
    assert scores == pytest.approx(others, abs=1e-5)
    whole = task.module(x)  # on tokens or pixels
    right = whole(*plain.test[:-1]).argmax(1) == plain.test[-1]
    assert not whole.training
    assert float(right.double().mean()) == scores["accuracy"]


@pytest.mark.parametrize(("model", "train"), [("Bert", "last-1"), ("Roberta", "last-2"), ("DistilBert", "last-1")])
def test_the_last_layers_of_a_text_model_learn_as_in_the_whole(model, train, rte, monkeypatch, tmp_path):
    compare(rte(model, train), uncut(rte, monkeypatch, tmp_path, model, train))


@pytest.mark.parametrize("train", ["last-1", "last-2", "last-4"])
def test_the_last_stages_of_tinyvit_learn_as_in_the_whole(train, pictures):
    task, plain = pictures(train), pictures(train, augment=True)  # which is not computed once
    plain.augment = None
    compare(task, plain)


@pytest.mark.parametrize("model", ["Electra", "GPT2"])  # a projection behind the embeddings; no embeddings of that name
def test_a_text_model_that_cannot_be_cut_stays_whole(model, rte):
    task = rte(model)
    assert task.data.data[0].dtype == torch.int32
    frozen = [name for name, p in task._template.named_parameters() if not p.requires_grad]
    assert any("embed" in name or "wte" in name for name in frozen)
    batch = next(task.batches(Job(0, 0, 0, task.init(0), 1, None, 0)))
    assert task.gradient(task.init(0), batch, None)[1].abs().max() > 0


def test_it_is_computed_once_and_again_for_anything_else(rte, pictures, tmp_path, monkeypatch):
    calls, real = [], trainable_layers.layer_inputs
    monkeypatch.setattr(trainable_layers, "layer_inputs", lambda *a, **k: calls.append(a) or real(*a, **k))
    for build in (rte, pictures):
        first, again = build(), build(clients=1, batch_size=2)
        assert len(calls) == 2  # to train on, and to test on
        assert torch.equal(first.data.data[0], again.data.data[0])
        build(train="last-2")
        assert len(calls) == 4
        calls.clear()
    for path in (tmp_path / "cache").glob("states-*.safetensors"):
        path.write_bytes(path.read_bytes()[:-9])
    assert torch.equal(pictures().data.data[0], first.data.data[0])
    assert len(calls) == 2


def test_what_the_mask_hides_is_not_seen(rte):
    states, mask, _ = rte().data.data
    assert states.shape[:2] == mask.shape
    assert (mask.sum(1) < mask.shape[1]).any()
    module = rte()._template.eval()
    noisy = torch.where(mask.bool()[..., None], states, torch.randn_like(states))
    with torch.no_grad():
        assert torch.allclose(module(noisy, mask), module(states, mask), atol=1e-6)


def test_a_cut_leaves_a_network_as_it_was_if_it_would_lose_a_trained_parameter():
    network = transformers.BertForSequenceClassification(
        transformers.BertConfig(**{k: v for k, v in SMALL.items() if k != "embedding_size"}, intermediate_size=8)
    )
    before = copy.deepcopy(network.state_dict())
    assert not trainable_layers.cut(network, "last-1")  # nothing is frozen
    assert network.state_dict().keys() == before.keys()
    trainable_layers.freeze(network, "last-1")
    kept = [p for p in network.parameters() if p.requires_grad]
    assert trainable_layers.cut(network, "last-1")
    assert all(a is b for a, b in zip(network.parameters(), kept, strict=True))
