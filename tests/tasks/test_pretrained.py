"""Saved networks: `from_pretrained` gives the same outputs, adapters stay adapters, a card tells of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model
from torch import nn

import tardygrad as tg
from tardygrad.errors import Invalid
from tardygrad.runs.describe import training_facts
from tardygrad.tasks import Lora, causal_lm

INPUTS = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
DATA = (INPUTS, (INPUTS.sum(1) > 0).long())
TOKENS = torch.tensor([[5, 9, 7, 30]])
TINY = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2
}  # fmt: skip


def small(module: Any, **how: Any) -> tg.TorchTask:
    return tg.TorchTask(
        module, data=tg.shard(DATA, clients=3), test=DATA, loss=nn.functional.cross_entropy, batch_size=4, **how
    )


def trained(task: Any) -> tg.Run:
    method = tg.fedavg(local_lr=0.05, buffer=2, local_steps=2, optimizer="AdamW")
    return tg.simulate(method, task, tg.Fleet.paper(clients=task.clients), rounds=3, evaluate_every=3)


def language(folder: Path, **how: Any) -> Any:
    (folder / "text.txt").write_text("the cat sat on the mat and looked at the dog " * 20)
    return causal_lm(**({"data": str(folder / "text.txt"), "clients": 3, "cache": str(folder), "block": 16} | how))


@torch.no_grad()
def logits(network: Any) -> torch.Tensor:
    found: torch.Tensor = network(input_ids=TOKENS).logits
    return found


def test_a_network_of_transformers_is_loaded_with_its_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    task = language(tmp_path, config=TINY)
    run, out = trained(task), tmp_path / "out"
    task.save_pretrained(run.x, out, facts=run.facts())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(loaded), logits(task.module(run.x)))
    assert not torch.equal(logits(loaded), logits(task.module(task.init(0))))
    tokens = transformers.AutoTokenizer.from_pretrained(out)
    assert tokens.decode(tokens("a mat")["input_ids"]) == "a mat"
    card = (out / "README.md").read_text("utf-8")
    assert card.startswith('---\nlibrary_name: "transformers"\ntags: ["tardygrad"]\n---\n')
    for part in ("LlamaForCausalLM.from_pretrained('out')", "FedAvg", "stragglers = ", "mean ", "| test perplexity |"):
        assert part in card
    assert str(tmp_path) not in card  # a card is public


@pytest.mark.parametrize("fresh", [True, False])
def test_adapters_stay_adapters(tmp_path: Path, fresh: bool) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra hf")
    source: dict[str, Any] = {"config": TINY}
    if not fresh:
        base = language(tmp_path, config=TINY)
        base.save_pretrained(base.init(4), tmp_path / "base model")
        source = {"model": str(tmp_path / "base model")}
    task = language(tmp_path, lora=Lora(r=2), **source)
    run, out = trained(task), tmp_path / "out"
    files = task.save_pretrained(run.x, out)
    names = {file.relative_to(out).as_posix() for file in files}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= names
    assert "model.safetensors" not in names
    assert ("base/model.safetensors" in names) == fresh
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 2
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(loaded), logits(task.module(run.x)))
    assert not torch.equal(logits(loaded), logits(task.module(task.init(0))))


def test_any_other_module_is_saved_with_its_buffers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    task = small(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    run = trained(task)
    task.save_pretrained(run.x, tmp_path / "out", run.module_buffers)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    load_model(other, tmp_path / "out/model.safetensors")
    assert int(other[1].num_batches_tracked) > 0  # type: ignore[arg-type]
    assert torch.equal(other(INPUTS), task.module(run.x, run.module_buffers)(INPUTS))
    assert "load_model(network, 'out/model.safetensors')  # network: your Sequential" in (
        tmp_path / "out/README.md"
    ).read_text("utf-8")


def test_of_a_cut_network_the_whole_is_saved(tmp_path: Path) -> None:
    def whole() -> nn.Module:
        network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
        network[0].weight.data.copy_(2 * torch.eye(3))
        network[0].requires_grad_(False)
        return network

    torch.manual_seed(2)
    task = small(nn.Linear(3, 2), uncut=whole)
    task.save_pretrained(task.init(0), tmp_path / "out")
    other = whole()
    load_model(other, tmp_path / "out/model.safetensors")
    assert torch.equal(other(INPUTS), task.module(task.init(0))(INPUTS))
    assert torch.equal(other[1].weight.flatten(), task.init(0)[:6])  # type: ignore[index]


def test_only_files_of_an_earlier_export_are_removed(tmp_path: Path) -> None:
    class Words:
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "vocab.txt").touch()

    task, out = small(nn.Linear(3, 2)), tmp_path / "out"
    task.tokenizer = Words()
    task.save_pretrained(task.init(0), out)
    (out / "notes.txt").touch()
    task.tokenizer = None
    task.save_pretrained(task.init(0), out, overwrite=True)
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "model.safetensors", "notes.txt"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").touch()
    with pytest.raises(Invalid, match=r"other' holds a model that tardygrad did not write, config\.json\."):
        task.save_pretrained(task.init(0), tmp_path / "other", overwrite=True)
    assert (tmp_path / "other/config.json").exists()


def test_the_folder_of_a_run_is_not_overwritten(tmp_path: Path) -> None:
    task = small(nn.Linear(3, 2))
    method = tg.fedavg(local_lr=0.05, buffer=2, local_steps=2)
    run = tg.simulate(method, task, tg.Fleet.paper(clients=3), rounds=1, out=tmp_path / "run")
    before = (tmp_path / "run/model.safetensors").read_bytes()
    with pytest.raises(Invalid, match=r"run' holds a run, whose model would be replaced\. Choose another folder\."):
        task.save_pretrained(run.x, tmp_path / "run", overwrite=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_an_earlier_model_is_removed(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    adapters, out = language(tmp_path, config=TINY, lora=Lora(r=2)), tmp_path / "out"
    for overwrite in (False, True):
        adapters.save_pretrained(adapters.init(0), out, overwrite=overwrite)
    assert (out / "base/model.safetensors").exists()
    (out / "notes.txt").touch()
    whole = language(tmp_path, config=TINY)
    whole.save_pretrained(whole.init(1), out, overwrite=True)
    names = {file.name for file in out.iterdir()}
    assert "notes.txt" in names
    assert not names & {"adapter_config.json", "adapter_model.safetensors", "base"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(logits(loaded), logits(whole.module(whole.init(1))))
    adapters = language(tmp_path, model=str(out), lora=Lora(r=2))
    with pytest.raises(Invalid, match=r"out' holds the base of these adapters\. Choose another folder\."):
        adapters.save_pretrained(adapters.init(0), out, overwrite=True)
    assert (out / "model.safetensors").exists()


def test_text_of_a_record_cannot_break_out_of_the_card() -> None:
    run = trained(small(nn.Linear(3, 2)))
    hostile = {"spec": {"task": {"kind": "a|b\n# Title <img src=x> [l](javascript:x)"}}, "classes": [["`x`", 3]]}
    facts = training_facts(hostile, run.summary())
    assert "\n# Title" not in facts
    assert "a\\|b # Title".replace("#", "\\#") in facts
    assert "\\<img src=x\\> \\[l\\](javascript:x)" in facts
