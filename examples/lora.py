"""LoRA fine-tuning of a causal language model on ragged rows: only the adapters travel."""

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import tardygrad as tg

TEXT = "the cat sat on a mat and saw another cat that sat on another mat near the dog"
WORDS = TEXT.split()
vocabulary = {word: i + 1 for i, word in enumerate(sorted(set(WORDS)))}  # 0 is padding


def texts(client: int) -> Dataset:
    """The sentences of one client, each of another length."""
    rng = torch.Generator().manual_seed(client)
    starts = torch.randint(0, len(WORDS) - 4, (30,), generator=rng).tolist()
    lengths = torch.randint(3, 9, (30,), generator=rng).tolist()
    sentences = [WORDS[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    return Dataset.from_dict({"tokens": [[vocabulary[word] for word in sentence] for sentence in sentences]})


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad the rows of a batch to the same length; attention and loss ignore the padding."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["tokens"]) for row in rows], batch_first=True)
    mask = tokens.ne(0)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.masked_fill(~mask, -100)}


def network() -> torch.nn.Module:
    """A tiny Llama with adapters; yours is `LlamaForCausalLM.from_pretrained(...)`."""
    sizes = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    adapters = LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "lm_head"], task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(sizes), adapters)


task = tg.TorchTask(network, data=texts, clients=12, test=lambda: texts(99), collate=collate, batch_size=8)
method = tg.clip2(
    local_lr=0.003, local_clip=1.0, optimizer="AdamW", lr=1.0, clip=0.05, buffer=3, local_epochs=1, mode="client"
)
run = tg.simulate(method, task, tg.Fleet.paper(clients=12, stragglers="large"), rounds=40)
print(task)
print(run.summary())

# It prints:
#
# TorchTask(PeftModelForCausalLM, parameters=4864, clients=12)
# Clip² (client-centric, M=3, K=1 epoch)
# finished after 40 rounds, 28 s on the clock
# test loss 0.2952, perplexity 1.343
# delay mean 3.5, largest 9; 120 updates, 0 lost
