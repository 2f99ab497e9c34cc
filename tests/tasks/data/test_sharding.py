"""Sharding: every row to one client at most, every client at least one row, and clients as alike as asked for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tardygrad.errors import Invalid
from tardygrad.tasks import Shards, TorchTask, shard


def labelled(rows, labels=5, seed=0):
    target = torch.randint(labels, (rows,), generator=torch.Generator().manual_seed(seed))
    return torch.arange(float(rows))[:, None], target


def sizes(shards):
    return [len(rows) for rows in shards.rows]


def used(shards):
    return sorted(row for rows in shards.rows for row in rows.tolist())


HOWS = st.one_of(
    st.just({"how": "iid"}),
    st.builds(lambda c: {"concentration": c}, st.floats(0.01, 100.0)),
    st.builds(lambda k: {"how": "label", "labels_per_client": k}, st.integers(1, 5)),
)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.integers(1, 120),
    clients=st.integers(1, 30),
    labels=st.integers(1, 6),
    how=HOWS,
    balanced=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_split_is_a_split_or_is_refused(rows, clients, labels, how, balanced, seed):
    data = labelled(rows, labels, seed)
    try:
        shards = shard(data, clients=clients, balanced=balanced, seed=seed, **how)
    except Invalid:
        if rows >= clients and (how.get("how") == "iid" or ("concentration" in how and balanced)):
            raise  # these always work out
        return
    found = used(shards)
    assert shards.clients == clients
    assert len(set(found)) == len(found)
    assert set(found) <= set(range(rows))
    assert min(sizes(shards)) >= 1
    if how.get("how") != "label":
        assert found == list(range(rows))
        assert not balanced or max(sizes(shards)) - min(sizes(shards)) <= 1
    else:
        assert not balanced or len(set(sizes(shards))) == 1
        assert all(len(data[1][own].unique()) <= how["labels_per_client"] for own in shards.rows)


def test_a_split_is_a_function_of_its_seed():
    data = labelled(200)
    for how in ({}, {"concentration": 0.3}, {"how": "label"}, {"balanced": False}):
        a, b, c = (shard(data, clients=5, seed=seed, **how) for seed in (0, 0, 1))
        assert all(torch.equal(x, y) for x, y in zip(a.rows, b.rows, strict=True))
        assert not all(torch.equal(x, y) for x, y in zip(a.rows, c.rows, strict=True))


def largest_share(shards):
    """The mean over clients of the share of their most frequent label."""
    target = shards.data[-1]
    return sum(float(target[own].bincount().max() / len(own)) for own in shards.rows) / shards.clients


@pytest.mark.parametrize("balanced", [True, False])
def test_concentration_says_how_alike_clients_are(balanced):
    data = labelled(5000, labels=10)
    few, some, many = (
        largest_share(shard(data, clients=10, concentration=c, balanced=balanced)) for c in (0.05, 0.5, 1000.0)
    )
    assert few > 0.55
    assert 0.25 < some < few - 0.1
    assert many < 0.15


def test_labels_are_held_by_equally_many_clients_and_all_used_if_unbalanced():
    data = labelled(1000, labels=10)
    shards = shard(data, clients=15, how="label", labels_per_client=2, balanced=False)
    assert used(shards) == list(range(1000))
    assert all(len(data[1][own].unique()) == 2 for own in shards.rows)
    holders = sum(torch.eye(10)[data[1][own].unique()].sum(0) for own in shards.rows)
    assert holders.tolist() == [3.0] * 10
    pairs = {tuple(data[1][own].unique().tolist()) for own in shards.rows}
    assert len(pairs) > 5  # not always the same labels together


class Squares(Dataset):
    """Rows {"number": i, "square": i²}, read only when they are asked for."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 6

    def __getitem__(self, i):
        self.read.append(i)
        return {"number": torch.tensor(i), "square": i * i}


def rows_of(split):
    """Each client's numbers."""
    return [[split[client][i]["number"].item() for i in range(len(split[client]))] for client in range(split.clients)]


def test_tensors_stay_in_memory_and_the_rows_of_other_datasets_are_read_when_needed():
    tensors = labelled(6)
    assert shard(TensorDataset(*tensors), clients=2).data[0] is tensors[0]
    numbers = Squares()
    split = shard(numbers, clients=2, how="label", labels=[0, 1, 0, 1, 0, 1], labels_per_client=1)
    assert numbers.read == []
    assert sorted(rows_of(split)) == [[0, 2, 4], [1, 3, 5]]
    as_list = shard([numbers[i] for i in range(6)], clients=2)
    assert sorted(number for own in rows_of(as_list) for number in own) == list(range(6))


@pytest.mark.parametrize("make", [Squares, lambda: labelled(6)], ids=["dataset", "tensors"])
def test_a_natural_split_keeps_sizes_and_ids(make):
    split = shard(make(), by=["zoe", "ben", "zoe", "zoe", 7, "zoe"])
    assert TorchTask(torch.nn.Linear(1, 1), data=split).ids == split.ids
    assert (split.ids, split.clients) == (("zoe", "ben", "7"), 3)
    rows = rows_of(split) if make is Squares else [own.tolist() for own in split.rows]
    assert rows == [[0, 2, 3, 5], [1], [4]]


def test_the_columns_of_a_hugging_face_dataset_name_clients_and_labels():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"user": ["u1", "u2", "u1"], "kind": ["a", "b", "b"], "x": [1.0, 2.0, 3.0]})
    split = shard(table, by="user")
    assert (split.ids, [split[0][i]["x"] for i in range(2)]) == (("u1", "u2"), [1.0, 3.0])
    by_label = shard(table, clients=2, how="label", labels="kind", labels_per_client=1, balanced=False)
    assert sorted(len(by_label[client]) for client in range(2)) == [1, 2]
    with pytest.raises(Invalid, match=r"`by` must name a column of the data.*The columns are user, kind, x\."):
        shard(table, by="usr")


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


DATA = (torch.zeros(10, 1), torch.arange(10) % 5)
FLOATS = (torch.zeros(10, 1), torch.zeros(10))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: shard(DATA, clients=11),
            "every client needs at least one row, got 10 rows for 11 clients. Use fewer clients.",
        ),
        (
            lambda: shard(DATA, clients=2, how="dirichlet"),
            "how='dirichlet' needs a `concentration`, got none. Use 0.3 for clearly different clients.",
        ),
        (
            lambda: shard(DATA, clients=2, how="iid", concentration=1.0),
            "`concentration` belongs to how='dirichlet', got how='iid'. Leave one of them out.",
        ),
        (
            lambda: shard(DATA, clients=2, how="label", labels_per_client=9),
            "`labels_per_client` must be at most the number of labels (5), got 9.",
        ),
        (
            lambda: shard(labelled(40), clients=20, concentration=0.01, balanced=False),
            "every client needs at least one row, got none for client",
        ),
        (lambda: Shards(DATA, (torch.tensor([10]),)), "rows must be between 0 and 9, got others for client 0."),
        (
            lambda: shard((torch.zeros(3, 1), torch.zeros(4)), clients=2),
            "inputs and target must have the same number of rows, at least one, got [3, 4].",
        ),
        (
            lambda: shard((np.zeros((3, 1)), np.zeros(3)), clients=2),
            "data must be two or more tensors (inputs..., target) or a dataset, got ndarray, ndarray. "
            "Use torch.from_numpy(array).",
        ),
        (lambda: shard(DATA, by=[1, 2], how="iid"), "`by` is a split itself. Leave out"),
        (lambda: shard(DATA, by="user"), "`by` must name a column of the data, or be one value per row, got 'user'"),
        (
            lambda: Shards(DATA, (torch.tensor([1]), torch.tensor([2])), ("a", "a")),
            "a split must have a client, and an id of its own for each, got 1 for 2 clients.",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(call, text):
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value).startswith(text)
