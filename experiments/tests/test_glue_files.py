"""The files of GLUE: both layouts give the same rows, and every broken one its own sentence."""

import sys
import types
from pathlib import Path

import pytest

from experiments.tasks.glue_files import FORMS, load
from experiments.tests.text_files import examples, tsv, write_parquet, write_tsv
from tardygrad.errors import Invalid

SHARED = Path(__file__).parents[2].parent / "shared/data/glue"


@pytest.fixture(autouse=True)
def arrow():
    pytest.importorskip("pyarrow")


def same(rows, held):
    """Whether rows are the examples."""
    texts = list(zip(*rows.texts, strict=True))
    return texts == [t for t, _ in held] and rows.labels == pytest.approx([label for _, label in held], abs=1e-6)


def both(folder, name, train, test, **names):
    """A task in parquet, whole."""
    write_parquet(folder / name / f"{names.get('train', 'train')}.parquet", name, train)
    write_parquet(folder / name / f"{names.get('test', FORMS[name].validation)}.parquet", name, test)


@pytest.mark.parametrize("name", FORMS)
def test_both_layouts_give_the_same_rows(name, tmp_path):
    train, test = examples(name, 12), examples(name, 7, seed=1)
    both(tmp_path / "hub", name, train, test)
    write_tsv(tmp_path / "own", name, train, test)
    for layout in ("hub", "own"):
        found = load(name, str(tmp_path / layout), None, 0)
        assert same(found[0], train)
        assert same(found[1], test)
    validation = "validation_matched" if name == "mnli" else "validation"
    assert load(name, str(tmp_path / "hub"), None, 0)[1].source == f"{name}/{validation}.parquet"
    assert found[0].source == f"{FORMS[name].folder}/train.tsv"


@pytest.mark.parametrize("name", FORMS)
def test_label_ids_are_those_of_the_hub(name, tmp_path):
    words = {
        "mnli": ["entailment", "neutral", "contradiction"], "qnli": ["entailment", "not_entailment"],
        "rte": ["entailment", "not_entailment"],
    }.get(name, ["0", "1"])  # fmt: skip
    assert list(FORMS[name].labels) == ([] if name == "stsb" else words)


def test_a_split_may_be_in_numbered_parts(tmp_path):
    held = examples("rte", 10)
    write_parquet(tmp_path / "rte/train-00000-of-00002.parquet", "rte", held[:6])
    write_parquet(tmp_path / "rte/train-00001-of-00002.parquet", "rte", held[6:])
    write_parquet(tmp_path / "rte/validation-00000-of-00001.parquet", "rte", held[:3])
    train, test = load("rte", str(tmp_path), None, 0)
    assert same(train, held)
    assert same(test, held[:3])
    assert train.source == "rte/train-00000-of-00002.parquet and 1 more"


def test_quotes_and_odd_line_ends_are_text(tmp_path):
    held = [(('he said "no', "a\u2028b\x85c"), 0), (('"', "it's"), 1)]
    write_tsv(tmp_path, "rte", held, held)
    assert same(load("rte", str(tmp_path), None, 0)[0], held)


def test_carriage_returns_and_a_byte_order_mark_are_no_text(tmp_path):
    held = examples("mrpc", 4)
    write_tsv(tmp_path, "mrpc", held, held)
    for file in (tmp_path / "MRPC").iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert same(load("mrpc", str(tmp_path), None, 0)[0], held)


def test_cola_has_no_heading_and_qqp_broken_rows(tmp_path):
    held = examples("cola", 5)
    assert tsv("cola", held).count("\n") == 5
    write_tsv(tmp_path, "cola", held, held)
    assert len(load("cola", str(tmp_path), None, 0)[0]) == 5
    held = examples("qqp", 6)
    write_tsv(tmp_path, "qqp", held, held)
    with (tmp_path / "QQP/train.tsv").open("a", encoding="utf-8") as file:
        file.write("7\t1\t2\ta question without its pair\n")
    assert same(load("qqp", str(tmp_path), None, 0)[0], held)


def test_the_large_tasks_are_sampled_and_the_sample_is_keyed(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.tasks.glue_files.LARGE", 20)
    held = [((f"sentence {i}",), i % 2) for i in range(50)]
    both(tmp_path, "sst2", held, held)
    a, b, c = (load("sst2", str(tmp_path), None, seed)[0] for seed in (0, 0, 1))
    assert a == b != c
    assert len(a) == 20
    numbers = [int(text.split()[1]) for text in a.texts[0]]
    assert numbers == sorted(numbers)
    assert a.labels == [i % 2 for i in numbers]
    assert len(load("sst2", str(tmp_path), "all", 0)[0]) == 50
    assert len(load("sst2", str(tmp_path), 30, 0)[0]) == 30
    both(tmp_path, "rte", examples("rte", 30), examples("rte", 3))
    assert len(load("rte", str(tmp_path), None, 0)[0]) == 30
    assert len(load("rte", str(tmp_path), 5, 0)[0]) == 5
    both(tmp_path / "few", "sst2", held[:6], held)
    assert len(load("sst2", str(tmp_path / "few"), None, 0)[0]) == 6


def test_samples_and_pools_stand_in_for_what_is_absent_but_never_leak(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.tasks.glue_files.LARGE", 4)
    held = [((f"a {i}", f"b {i}"), i % 2) for i in range(10)]
    for name, test in (("qnli", "validation"), ("qqp", "validation_heldout")):
        for file, rows in (("train_5k", held[:4]), ("train_pool", held), (test, held[4:])):
            write_parquet(tmp_path / name / f"{file}.parquet", name, rows)
    sources = {
        (name, rows): load(name, str(tmp_path), rows, 0)[0].source
        for name in ("qnli", "qqp") for rows in (None, 3, "all")
    }  # fmt: skip
    assert sources == {
        ("qnli", None): "qnli/train_5k.parquet", ("qnli", 3): "qnli/train_5k.parquet",
        ("qnli", "all"): "qnli/train_pool.parquet", ("qqp", None): "qqp/train_5k.parquet",
        ("qqp", 3): "qqp/train_5k.parquet", ("qqp", "all"): "qqp/train_5k.parquet",
    }  # fmt: skip
    assert len(load("qnli", str(tmp_path), 9, 0)[0]) == 9
    assert load("qqp", str(tmp_path), None, 0)[1].source == "qqp/validation_heldout.parquet"
    with pytest.raises(Invalid, match=r"`rows` must be at most the 4 of qqp/train_5k.parquet, got 9. Use rows='all'."):
        load("qqp", str(tmp_path), 9, 0)
    write_parquet(tmp_path / "qnli/train.parquet", "qnli", held)
    assert load("qnli", str(tmp_path), None, 0)[0].source == "qnli/train.parquet"


def broken(folder, name, change):
    """A task in GLUE's own layout with a changed training file."""
    write_tsv(folder, name, examples(name, 4), examples(name, 4))
    file = folder / FORMS[name].folder / "train.tsv"
    file.write_bytes(change(file.read_bytes()))
    return load(name, str(folder), None, 0)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "rte",
            lambda raw: raw.replace(b"label", b"gold", 1),
            "RTE/train.tsv must have the column 'label', got index, sentence1, sentence2, gold.",
        ),
        ("sst2", lambda raw: b"", "SST-2/train.tsv must have the column 'sentence', got no heading."),
        ("sst2", lambda raw: b"sentence\tlabel\n", "SST-2/train.tsv must have rows, got none."),
        (
            "rte",
            lambda raw: raw.replace(b"not_entailment", b"unknown", 1),
            "labels of rte must be 0 to 1 (entailment, not_entailment), got 'unknown' in row 1 of RTE/train.tsv. "
            "Test splits have no labels.",
        ),
        (
            "stsb",
            lambda raw: raw + b"\t".join([b"x"] * 9 + [b"6.5"]),
            "labels of stsb must be between 0 and 5, got 6.5 in row 4 of STS-B/train.tsv. Test splits have no labels.",
        ),
        (
            "stsb",
            lambda raw: raw + b"\t".join([b"x"] * 9 + [b"much"]),
            "labels of stsb must be between 0 and 5, got 'much' in row 4 of STS-B/train.tsv. "
            "Test splits have no labels.",
        ),
        (
            "cola",
            lambda raw: b"\xff" + raw,
            "CoLA/train.tsv cannot be read (UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: "
            "invalid start byte). Download it again.",
        ),
    ],
)
def test_a_broken_file_gets_its_own_sentence(name, change, text, tmp_path):
    with pytest.raises(Invalid) as caught:
        broken(tmp_path, name, change)
    assert str(caught.value) == text


def test_broken_parquet_gets_its_own_sentence(tmp_path):
    held = examples("rte", 4)
    both(tmp_path, "rte", held, held)
    train = tmp_path / "rte/train.parquet"
    whole = train.read_bytes()

    def said(name="rte"):
        with pytest.raises(Invalid) as caught:
            load(name, str(tmp_path), None, 0)
        return str(caught.value)

    train.write_bytes(whole[: len(whole) // 2])
    assert said() == (
        "rte/train.parquet cannot be read (ArrowInvalid: Parquet magic bytes not found in footer. Either the file is "
        "corrupted or this is not a parquet file.). Download it again."
    )
    write_parquet(train, "qnli", [(("q", "s"), 0)])
    assert said() == (
        "rte/train.parquet must have the columns sentence1, sentence2, label, got question, sentence, label, idx."
    )
    write_parquet(train, "rte", [(("q", "s"), 0), (("q", "s"), -1)])
    assert said() == (
        "labels of rte must be 0 to 1 (entailment, not_entailment), got -1 in row 1 of rte/train.parquet. "
        "Test splits have no labels."
    )
    both(tmp_path, "stsb", [(("q", "s"), 5.5)], examples("stsb", 2))
    assert said("stsb") == (
        "labels of stsb must be between 0 and 5, got 5.5 in row 0 of stsb/train.parquet. Test splits have no labels."
    )
    both(tmp_path, "sst2", [(("s",), 1)], examples("sst2", 2))
    empty = __import__("pyarrow").table({"sentence": ["s"], "label": [1]}).slice(0, 0)
    __import__("pyarrow.parquet").parquet.write_table(empty, tmp_path / "sst2/train.parquet")
    assert said("sst2") == "sst2/train.parquet must have rows, got none."


def test_absent_data_say_how_to_get_them(tmp_path):
    write_parquet(tmp_path / "mnli/train.parquet", "mnli", examples("mnli", 3))  # and no validation set
    with pytest.raises(Invalid) as caught:
        load("mnli", str(tmp_path), None, 0)
    assert str(caught.value) == (
        "`data` must be a folder with mnli/train.parquet and mnli/validation_matched.parquet, or with MNLI/train.tsv "
        f"and MNLI/dev_matched.tsv, got {str(tmp_path)!r} with neither. Use data='hub', or hf download nyu-mll/glue "
        f"--type dataset --include 'mnli/*' --local-dir {tmp_path}"
    )
    with pytest.raises(Invalid, match=r"MNLI/dev_matched.tsv, got none. Use data='hub', or .* --local-dir FOLDER"):
        load("mnli", None, None, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"name": "sst"},
            "`name` must be one of mnli, qnli, qqp, rte, sst2, mrpc, cola, stsb, got 'sst'. Did you mean 'sst2'?",
        ),
        ({"rows": 0}, "`rows` must be a whole number, 1 or more, got 0."),
        ({"rows": "most"}, "`rows` must be a whole number, 1 or more, got 'most'."),
        ({"rows": True}, "`rows` must be a whole number, 1 or more, got True."),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(given, text, tmp_path):
    settings = {"name": "rte", "data": str(tmp_path), "rows": None, "seed": 0} | given
    with pytest.raises(Invalid) as caught:
        load(**settings)
    assert str(caught.value) == text


def test_parquet_without_pyarrow_and_a_hub_without_its_package(tmp_path, monkeypatch):
    both(tmp_path, "rte", examples("rte", 3), examples("rte", 3))
    for package in ("pyarrow", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Invalid, match="parquet files need pyarrow, which is not installed"):
        load("rte", str(tmp_path), None, 0)
    with pytest.raises(
        Invalid, match=r"data='hub' needs nyu-mll/glue, which needs huggingface_hub, which is not installed. Use pip"
    ):
        load("rte", "hub", None, 0)


def test_the_hub_is_asked_for_one_task(tmp_path, monkeypatch):
    both(tmp_path, "rte", examples("rte", 3), examples("rte", 3))
    asked = []

    def fetch(repository, **settings):
        asked.append((repository, settings))
        if len(asked) > 1:
            raise ConnectionError
        return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fetch))
    assert len(load("rte", "hub", None, 0)[0]) == 3
    assert asked == [("nyu-mll/glue", {"repo_type": "dataset", "allow_patterns": ["rte/*.parquet"]})]
    with pytest.raises(Invalid) as caught:
        load("rte", "hub", None, 0)
    assert str(caught.value) == (
        "data='hub' needs nyu-mll/glue, which cannot be downloaded from huggingface.co (ConnectionError). "
        "Download it elsewhere and give its folder."
    )


ROWS = {
    "mnli": (5000, 9815), "qnli": (5000, 5463), "qqp": (5000, 4999), "rte": (2490, 277), "sst2": (5000, 872),
    "mrpc": (3668, 408), "cola": (8551, 1043), "stsb": (5749, 1500),
}  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="GLUE is not on this machine")
@pytest.mark.parametrize("name", FORMS)
def test_the_real_files_have_the_official_numbers_of_rows(name):
    train, test = load(name, str(SHARED), None, 0)
    assert (len(train), len(test)) == ROWS[name]
    assert all(text.strip() for column in test.texts for text in column)
    if name != "stsb":
        assert set(test.labels) == set(range(len(FORMS[name].labels)))
    if name == "qqp":  # cut out of the pool that train_5k is from
        assert not set(zip(*train.texts, strict=True)) & set(zip(*test.texts, strict=True))


def test_a_text_that_is_missing_is_no_text(tmp_path):
    train = [((None, "b"), 0), (("c", "d"), 1)]
    both(tmp_path, "rte", train, examples("rte", 3))
    with pytest.raises(Invalid, match=r"`sentence1` must be text, got None in row 0 of .*Download it again."):
        load("rte", str(tmp_path), None, 0)
