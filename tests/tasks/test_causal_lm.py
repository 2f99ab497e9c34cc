"""Causal language models: texts on disk, clients by nature, pretrained and fresh networks, adapters on one base."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.spec import spec
from tardygrad.tasks import Lora, causal_lm
from tardygrad.tasks.causal_lm import byte_tokenizer

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
datasets = pytest.importorskip("datasets", reason="needs the extra hf")
pytest.importorskip("peft", reason="needs the extra hf")
TINY = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
USERS = {"anna": 6, "ben": 1, "carl": 9}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with texts of three users, each of another length."""
    rows = [
        {"text": f"{user} says {i} " + "word " * (i % 4), "user": user, "topic": i % 2}
        for user, number in USERS.items()
        for i in range(number)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return tmp_path


def task(here: Path, **how: Any) -> Any:
    given = {"data": str(here / "texts.jsonl"), "config": TINY, "block": 32, "cache": str(here / "cache")} | how
    return causal_lm(**{key: value for key, value in given.items() if value is not None})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its tokenizer, as on the hub."""
    folder, tokens = tmp_path_factory.mktemp("model"), byte_tokenizer()
    torch.manual_seed(5)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokens), **TINY)).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def test_clients_are_the_users_of_the_texts_and_each_keeps_a_row(here: Path) -> None:
    ours = task(here, by="user", test_share=0.4)
    assert ours.ids == tuple(USERS)
    rows = [ours.data[client] for client in range(3)]
    assert len(rows[1]) == 1
    texts = [ours.tokenizer.decode(row["input_ids"]) for row in rows[2]]
    assert any(text.startswith("carl") for text in texts)
    assert not any(text.startswith(("anna", "ben")) for text in texts)
    everything = task(here, by="user", test_share=0)
    assert everything.test is None
    assert sum(map(len, rows)) + len(ours.test) == sum(len(everything.data[client]) for client in range(3))


def test_the_loss_is_the_mean_over_tokens_and_the_perplexity_its_exponential(here: Path) -> None:
    ours = task(here, clients=2, test_share=0.5, batch_size=3)
    x = ours.init(1)
    network, total, tokens = ours.module(x), 0.0, 0
    for row in ours.test:
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            logits = network(input_ids=ids).logits[0, :-1]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        tokens += ids.shape[1] - 1
    scores = ours.evaluate(x, None)
    assert scores == pytest.approx({"loss": total / tokens, "perplexity": math.exp(total / tokens)}, rel=1e-5)


@pytest.mark.parametrize("lora", [None, Lora(r=2, target=("q_proj", "v_proj"))])
def test_it_learns_from_a_folder_with_a_model(here: Path, pretrained: Path, lora: Lora | None) -> None:
    ours = task(here, config=None, model=str(pretrained), clients=3, lora=lora, batch_size=4)
    weights = transformers.LlamaForCausalLM.from_pretrained(pretrained)
    network = ours.module(ours.init(3))
    batch = torch.tensor([[5, 9, 7]])
    with torch.no_grad():
        assert torch.equal(network(input_ids=batch).logits, weights(input_ids=batch).logits)
    assert ours.parameters == (2 * 2 * (16 + 16) if lora else sum(p.numel() for p in weights.parameters()))
    method = tg.fedavg(local_lr=0.02, optimizer="AdamW", buffer=3, local_epochs=2)
    run = tg.simulate(method, ours, tg.Fleet.paper(clients=3), rounds=6, evaluate_every=6)
    assert ours.evaluate(run.x, None)["loss"] < ours.evaluate(ours.init(0), None)["loss"] - (0.01 if lora else 0.5)
    assert not torch.equal(ours.init(1), ours.init(2)) if lora else torch.equal(ours.init(1), ours.init(2))


def test_files_of_every_kind_give_the_same_rows(here: Path) -> None:
    texts = ["a cat sat on a mat", "so did the dog"]
    tokens = byte_tokenizer()(texts)["input_ids"]
    ends = [[*ids, byte_tokenizer().eos_token_id] for ids in tokens]
    for name in ("txt", "jsonl", "parquet", "arrow"):
        (here / name).mkdir()
    for i, text in enumerate(texts):
        (here / "txt" / f"{i}.txt").write_text(text)
        (here / "jsonl" / f"{i}.jsonl").write_text(json.dumps({"text": text}) + "\n\n")
        datasets.Dataset.from_dict({"text": [text]}).to_parquet(here / "parquet" / f"{i}.parquet")
    datasets.Dataset.from_dict({"input_ids": ends}).save_to_disk(here / "arrow")
    found = {}
    for name in ("txt", "jsonl", "parquet", "arrow"):
        ours = task(here, data=str(here / name), clients=2, block=16, test_share=0)
        found[name] = sorted(row["input_ids"] for client in range(2) for row in ours.data[client])
        assert max(map(len, found[name])) == 16
    assert len({json.dumps(rows) for rows in found.values()}) == 1
    by_file = task(here, data=str(here / "txt"), by="file", test_share=0)
    assert by_file.ids == ("0.txt", "1.txt")


def test_rows_stay_on_the_disk(here: Path) -> None:
    (here / "long.txt").write_text("a long text " * 40_000)
    ours = task(here, data=str(here / "long.txt"), clients=3)
    (file,) = ours.data[0].dataset.cache_files
    assert Path(file["filename"]).stat().st_size > 1_500_000
    assert len(pickle.dumps(ours.data)) < 400_000  # row numbers, not rows
    batch = next(ours.batches(Job(0, 0, 0, ours.init(0), steps=1, epochs=None, seed=0))).data[0]
    assert batch["labels"].shape == batch["input_ids"].shape


def test_padding_counts_neither_in_attention_nor_in_the_loss(here: Path) -> None:
    pad = task(here, clients=2).loading.collate
    batch = pad([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, 5, -100]]


MEASURE = """
import gc, json, sys, threading
from pathlib import Path
import tardygrad as tg
from tardygrad.core.messages import Job
from tardygrad.tasks import Lora, causal_lm


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def work():
    for batch in task.batches(Job(0, 0, 0, x, steps=1, epochs=None, seed=0)):
        together.wait()
        task.gradient(x, batch, None)
        together.wait()


given = json.loads(sys.argv[1])
causal_lm(**given, clients=2, lora=Lora(r=1, target=("q_proj",)), block=8, batch_size=1)  # imports and caches
given["config"] |= {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2}
before = resident()
task = causal_lm(**given, clients=2, lora=Lora(r=1, target=("q_proj",)), block=8, batch_size=1)
x, used = task.init(7), resident()
together = threading.Barrier(4)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
base = sum(p.numel() * 4 for p in task.module(x).parameters())
print(base, used - before, resident() - used)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs to see its own memory")
def test_adapters_on_a_base_of_b_bytes_need_about_b_bytes(here: Path) -> None:
    given = {"config": TINY, "data": str(here / "texts.jsonl"), "cache": str(here / "cache")}
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}  # free memory is returned
    command = [sys.executable, "-c", MEASURE, json.dumps(given)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    base, task_alone, threads = map(int, ran.stdout.split())
    assert base > 120e6
    assert task_alone < 1.2 * base
    assert threads < 0.3 * base  # four threads, four copies of the module, one base


def test_the_shipped_spec_trains_a_fresh_model(here: Path) -> None:
    overrides = ["run.rounds=2", "task.clients=4", "method.buffer=2", f"task.cache={here}", "task.lora.r=2"]
    built = spec.load("causal_lm", overrides).build()
    assert type(built.task.module(built.task.init(0))).__name__ == "PeftModelForCausalLM"  # type: ignore[attr-defined]
    written = spec.load("causal_lm", overrides).resolved()
    assert written["task"]["lora"] == {"r": 2, "alpha": 32, "target": None, "dropout": 0.0}
    assert spec.parse(written).resolved() == written


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"model": "no/such-model-anywhere", "config": None}, "cannot be downloaded from huggingface.co"),
        ({"model": "x"}, "needs `model`, or `config` for a fresh one, got both"),
        ({"config": {"model_type": "lama"}}, "such as 'llama', got 'lama'. Did you mean 'llama'"),
        ({"block": 65}, r"at most the model's limit \(64 tokens\), got 65"),
        ({"column": "body"}, "row 1 of texts.jsonl must have `body`, got .*text"),
        ({"by": "person", "clients": None}, "row 1 of texts.jsonl must have `person`"),
        ({"how": "dirichlet", "concentration": 0.3}, "needs `labels`"),
        ({"lora": Lora(target=("c_attn",))}, "must name layers of the network, got .*Layers of this network: .*q_proj"),
        ({"config": TINY | {"vocab_size": 50}}, "tokens must be from 0 to 49"),
    ],
)  # fmt: skip
def test_mistakes_are_named(here: Path, how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        task(here, **({"clients": 2} | how))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"text": "a"}\n{"text": 1}\n', "`text` must be text, got 1 in row 2 of bad.jsonl"),
        ('{"text": "fine"}\n{"text": "\\ud800 hello"}\n', "bad.jsonl cannot be read"),
        (
            '{"input_ids": [1, 2]}\n\n{"input_ids": [1, 2.5]}\n',
            r"got \[1, 2\.5\] in row 2 of bad\.jsonl",
        ),
        ('{"input_ids": [1]}\n', "must have texts of two tokens or more, got none"),
    ],
)
def test_broken_lines_are_named(here: Path, text: str, complaint: str) -> None:
    (here / "bad.jsonl").write_text(text)
    with pytest.raises(Invalid, match=complaint):
        task(here, data=str(here / "bad.jsonl"), clients=1)


def test_code_in_a_models_folder_never_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "stranger"
    folder.mkdir()
    own = {"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.Own"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own, "vocab_size": 300}))
    (folder / "code.py").write_text(f"open({str(here / 'ran')!r}, 'w')")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(Invalid, match="AutoConfig can load"):
        task(here, config=None, model=str(folder), tokenizer="byte")
    with pytest.raises(Invalid):
        task(here, config=TINY | {"auto_map": {"AutoModelForCausalLM": f"{folder}--code.Own"}})
    assert not (here / "ran").exists()
