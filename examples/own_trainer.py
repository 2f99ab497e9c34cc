"""Your own training loop: `transformers.Trainer` makes the local steps, tardygrad sends its result to the server."""

import tempfile

import torch
from torch.utils.data import Subset, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import tardygrad as tg

words = torch.randint(0, 100, (600, 8), generator=torch.Generator().manual_seed(0))
labels = (words[:, 0] > words[:, 1]).long()  # whether the first word comes after the second in the dictionary
rows = [{"input_ids": x, "labels": y} for x, y in TensorDataset(words, labels)]


def network() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    )


def train(module: torch.nn.Module, job: tg.Job) -> float:
    """One job of a client: `job` says which client, how much work, and its random numbers."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=job.steps or -1, learning_rate=3e-3, seed=job.serial, use_cpu=True,
            per_device_train_batch_size=16, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        mine = Subset(rows, range(50 * job.client, 50 * job.client + 50))
        return Trainer(module, arguments, train_dataset=mine).train().training_loss


task = tg.TrainerTask(network, train=train, clients=10, test=rows[500:])
method = tg.fedbuff(lr=1.0, buffer=4, local_steps=10, mode="client")  # without local_lr: the loop has its own
run = tg.simulate(method, task, tg.Fleet.paper(clients=10, stragglers="mild"), rounds=15, evaluate_every=15)
print(task)
print(run.summary())

# It prints:
#
