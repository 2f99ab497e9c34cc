"""Language modelling: bytes and byte pairs, the small GPT, and what it learns of a tiny text."""

import copy
import math
import pickle

import pytest
import torch

from tardygrad.core.algorithm import Server, work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks import lm
from tardygrad.tasks.data import texts as text
from tardygrad.tasks.nets import GPT

RHYME = "the cat sat on the mat and the dog sat on the log; the bird, “tweet”, sat on the cat. "
SMALL = {"dim": 16, "depth": 1, "heads": 2, "context": 16, "batch_size": 8}


@pytest.fixture
def rhyme(tmp_path):
    (tmp_path / "rhyme.txt").write_text(RHYME * 60, "utf-8")
    return str(tmp_path / "rhyme.txt")


def job(task, client=0, steps=3):
    return Job(client, 0, 0, task.init(0), steps, None, 0)


def trained(task, rounds):
    """Full synchronisation, by hand."""
    method = sgdclip(local_lr=0.5, local_clip=0.1, lr=1.0, buffer=task.clients, local_steps=5, mode="sync")
    server = Server(method, task.init(0), clients=task.clients, seed=0)
    jobs = server.dispatch()
    while server.round < rounds:
        jobs += server.receive(work(jobs.pop(0), task, method)).jobs
    return task.evaluate(server.x, None)


def test_a_tiny_text_is_learnt(rhyme):
    task = lm(clients=2, text=rhyme, **SMALL)
    before, after = task.evaluate(task.init(0), None), trained(task, 25)
    assert before["loss"] > 5
    assert after["loss"] < 2.3  # the frequencies of its bytes alone are worth 2.9
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert after["bits_per_byte"] == pytest.approx(after["loss"] / math.log(2))


def test_rows_are_the_text_and_targets_the_bytes_that_follow(rhyme):
    task = lm(clients=3, text=rhyme, **SMALL)
    whole = (RHYME * 60).encode()
    cut = len(whole) * 9 // 10
    inputs, targets = task.data.data
    assert task.decode(inputs.flatten()) == whole[: inputs.numel()]
    assert task.decode(targets.flatten()) == whole[1 : 1 + inputs.numel()]
    assert cut - inputs.numel() <= 16
    assert task.decode(task.test[0].flatten()) == whole[cut:][: task.test[0].numel()]
    assert torch.equal(task.encode(b"abc"), torch.tensor([97, 98, 99], dtype=torch.uint8))


def test_clients_have_spans_of_the_text_or_any_rows(rhyme):
    spans = lm(clients=3, text=rhyme, **SMALL).data.rows
    assert torch.equal(torch.cat(spans), torch.arange(sum(map(len, spans))))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1
    mixed = lm(clients=3, text=rhyme, how="iid", **SMALL).data.rows
    assert not torch.equal(torch.cat(mixed), torch.arange(sum(map(len, mixed))))
    assert sorted(torch.cat(mixed).tolist()) == list(range(sum(map(len, spans))))
    assert len(lm(clients=3, text=rhyme, test_rows=2, **SMALL).test[0]) == 2


def test_the_last_training_rows_can_be_set_apart(rhyme):
    whole = lm(clients=3, text=rhyme, **SMALL)
    apart = {"text": rhyme, "clients": 3, "validation_rows": 20, **SMALL}
    chosen, reported = (lm(score_on=on, **apart) for on in ("validation", "test"))
    assert torch.equal(chosen.test[0], whole.data.data[0][-20:])
    assert torch.equal(chosen.test[1], whole.data.data[1][-20:])
    assert torch.equal(reported.test[0], whole.test[0])
    for task in (chosen, reported):
        assert torch.equal(task.data.data[0], whole.data.data[0][:-20])
        assert sum(map(len, task.data.rows)) == len(whole.data.data[0]) - 20
    with pytest.raises(Invalid, match="for 3 clients, 9999 validation rows and a context of 16, got"):
        lm(**(apart | {"validation_rows": 9999}))
    with pytest.raises(Invalid, match="needs validation_rows="):
        lm(clients=3, text=rhyme, score_on="validation", **SMALL)


def test_a_place_sees_the_past_only():
    module = GPT(vocabulary=11, context=8, dim=12, depth=2, heads=3)
    tokens = torch.arange(8)[None] % 11
    with torch.no_grad():
        before = module(tokens)
        tokens[0, 5] = 9
        after = module(tokens)
    assert before.shape == (1, 8, 11)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


def test_two_builds_compute_the_same_bits_and_so_does_a_copy(rhyme, tmp_path):
    pytest.importorskip("tokenizers")
    for tokens in ("byte", "bpe"):
        a, b = (
            lm(clients=2, text=rhyme, tokens=tokens, vocabulary=280, cache=str(tmp_path / name), **SMALL)
            for name in ("one", "two")
        )
        deltas = [work(job(one), one, sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=1, local_steps=1)).delta
                  for one in (a, b, copy.deepcopy(a), pickle.loads(pickle.dumps(b)))]  # noqa: S301  # fmt: skip
        assert all(torch.equal(delta, deltas[0]) for delta in deltas)


def test_byte_pairs_go_there_and_back(rhyme, tmp_path):
    pytest.importorskip("tokenizers")
    task = lm(clients=2, text=rhyme, tokens="bpe", vocabulary=300, cache=str(tmp_path / "cache"), **SMALL)
    for said in (RHYME, "naïve\n\n  café \t  🙂 unseen words", "", " "):
        assert task.decode(task.encode(said.encode())) == said.encode()
    assert len(task.encode(RHYME.encode())) < len(RHYME) / 2
    inputs, _ = task.data.data
    assert int(inputs.max()) < 300
    assert (RHYME * 60).encode().startswith(task.decode(inputs.flatten()))
    assert task.parameters > lm(clients=2, text=rhyme, **SMALL).parameters
    scores = task.evaluate(task.init(0), None)
    per_byte = len(task.encode(text.split((RHYME * 60).encode())[1])) / len(text.split((RHYME * 60).encode())[1])
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] * per_byte / math.log(2))


def test_byte_pairs_are_learnt_once_from_the_first_nine_tenths(rhyme, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    train, test = text.split((RHYME * 60).encode() + b"zz" * 200)
    learnt = text.pairs(train, 280, str(tmp_path))
    (file,) = tmp_path.glob("pairs-*.safetensors")
    written = file.stat().st_mtime_ns
    assert text.pairs(train, 280, str(tmp_path)) == learnt
    assert file.stat().st_mtime_ns == written
    assert text.pairs(train, 290, str(tmp_path)) != learnt
    assert text.pairs(train + test, 280, str(tmp_path)) != learnt
    assert tokenizers.Tokenizer.from_str(learnt.json).get_vocab_size() == 280
    (tmp_path / "rhyme.txt").write_bytes(train + test)
    task = lm(clients=2, text=str(tmp_path / "rhyme.txt"), tokens="bpe", vocabulary=280, cache=str(tmp_path), **SMALL)
    assert task.tokenizer == learnt


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"context": 0}, "`context` must be a whole number, 1 or more, got 0."),
        ({"heads": 3}, "`heads` must divide `dim` (16), got 3."),
        (
            {"text": "nowhere.txt"},
            "`text` must be a file, a folder with .txt files, or 'python', got 'nowhere.txt', which is neither.",
        ),
        (
            {"clients": 400},
            "a text must have about 7113 tokens for 400 clients and a context of 16, got 5400. "
            "Use a longer text, a smaller context or fewer clients.",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(settings, said, rhyme):
    with pytest.raises(Invalid) as caught:
        lm(**{"clients": 2, "text": rhyme} | SMALL | settings)
    assert str(caught.value) == said
