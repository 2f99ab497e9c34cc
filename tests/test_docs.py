"""The docs tell the truth: examples and commands print what they say, excerpts stand in the source, links resolve."""

from __future__ import annotations

import inspect
import pkgutil
import re
import resource
import runpy
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pytest
import torch
import typer

import tardygrad as tg
from tardygrad.cli import demo
from tardygrad.cli.commands import app
from tardygrad.cli.main import main
from tardygrad.runs.kinds import keys_of
from tardygrad.spec import spec
from tardygrad.spec.sources import shipped

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "distributed_worker": "ray", "lora": "peft", "lora_on_ray": "peft", "on_ray": "ray", "own_trainer": "accelerate"
}  # packages of extras  # fmt: skip
ON_RAY = ("distributed_worker", "lora_on_ray", "on_ray")
PRINTS = "\n# It prints:\n#\n"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
COMMAND: Any = typer.main.get_command(app)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Block(NamedTuple):
    """A fenced block: the language, the rest of its first line, the text."""

    language: str
    title: str
    text: str


@cache
def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*one) for one in found]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def agree(printed: str, said: str) -> None:
    """The same words, and numbers within a twentieth: the last digits may be another machine's."""
    for ours, theirs in zip_longest(printed.splitlines(), said.splitlines(), fillvalue="(no line)"):
        assert NUMBER.sub("#", " ".join(ours.split())) == NUMBER.sub("#", " ".join(theirs.split()))
        for a, b in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
            assert float(a.replace(",", "")) == pytest.approx(float(b.replace(",", "")), rel=0.05), (ours, theirs)


@cache
def code(example: Path) -> str:
    """An example without its docstring and without what it prints."""
    return example.read_text("utf-8").partition(PRINTS)[0].partition('"""\n\n')[2].strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_prints_what_it_says(
    example: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    if example.stem in ON_RAY:
        request.getfixturevalue("forked_ray_workers")
    said = example.read_text("utf-8").partition(PRINTS)[2]
    assert said
    memory = resource.getrlimit(resource.RLIMIT_AS)
    try:
        runpy.run_path(str(example), run_name="__main__")  # as a script: Ray then sends its functions by value
    finally:
        resource.setrlimit(resource.RLIMIT_AS, memory)  # which an example lowers
    printed = capsys.readouterr()
    agree(printed.out, "\n".join(line.removeprefix("# ") for line in said.splitlines()))
    assert not printed.err or NEEDS.get(example.stem) == "ray"  # whose daemons may report


def test_python_in_the_docs_is_that_of_an_example() -> None:
    known = [code(example) for example in (*EXAMPLES, ROOT / "examples/flower_async/flower_async/app.py")]
    texts = [block.text.strip() for page in PAGES for block in blocks(page) if block.language == "python"]
    assert not [text for text in texts if text not in known]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_a_page_shows_what_its_examples_print() -> None:
    for page, example in product(PAGES, EXAMPLES):
        texts = [block.text for block in blocks(page)]
        if f"{code(example)}\n" in texts:
            said = example.read_text("utf-8").partition(PRINTS)[2]
            assert "".join(line.removeprefix("# ") for line in said.splitlines(keepends=True)) in texts, page


def test_the_docs_show_what_the_demo_prints() -> None:
    (table,) = [block.text for block in blocks(ROOT / "docs/first-run.md") if block.text.startswith("method ")]
    _, *lines, note, result = table.splitlines()
    rows = [line.split() for line in lines[: len(demo.METHODS)]]
    assert [row[0] for row in rows] == list(demo.METHODS)
    assert note == demo.NOTE
    assert result == demo.sentence(float(rows[1][3]), float(rows[0][3]))


def test_the_tutorial_reads_a_csv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snippets: a file whose last column is the class, numbers as targets, and clients by a column."""
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```py\n(.*?)```", (ROOT / "docs/compare.md").read_text("utf-8"), re.DOTALL)
    classes, numbers, clients = map(textwrap.dedent, snippets)
    names: dict[str, Any] = {"np": np, "torch": torch, "nn": torch.nn, "tg": tg, "train": torch.tensor([2, 0])}

    Path("mine.csv").write_text("length,width,kind\n1.5,2,red\n3,4.5,white\n", "utf-8")
    exec(classes, names)  # noqa: S102
    assert (names["features"].tolist(), names["targets"].tolist()) == ([[1.5, 2.0], [3.0, 4.5]], ["red", "white"])

    Path("mine.csv").write_text("length,width,mass\n1.5,2,7\n3,4.5,8\n1,1,9\n", "utf-8")
    exec(classes + numbers, names)  # noqa: S102
    assert names["network"]()(names["inputs"]).shape == names["labels"].shape

    names["table"] = np.array([["oslo", "1.5", "red"], ["rome", "3", "white"], ["lima", "1", "red"]])
    exec(clients, names)  # noqa: S102
    assert (names["features"].tolist(), names["fleet"].clients) == ([[1.5], [3.0], [1.0]], 2)
    task = tg.TorchTask(torch.nn.Linear(2, 2), loss=torch.nn.functional.cross_entropy, data=names["data"])
    assert task.ids == ("lima", "oslo")


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Every `$ command` of a console block, with what the docs say it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


@pytest.mark.parametrize("page", [page for page in PAGES if "```console" in page.read_text("utf-8")], ids=name)
def test_commands_print_what_the_docs_say(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, title, text in blocks(page):
        if title:
            Path(title).write_text(text, "utf-8")
        for command, said in commands(text) if language == "console" else ():
            capfd.readouterr()
            with pytest.raises(SystemExit):
                main(shlex.split(command)[1:])
            printed = capfd.readouterr()
            agree(printed.err + printed.out, said)


def verbs(command: click.Group = COMMAND, before: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for word, one in command.commands.items():
        found |= verbs(one, f"{before}{word} ") if hasattr(one, "commands") else {before + word: one}
    return found


def test_every_verb_has_a_section_with_its_options_and_every_section_a_verb() -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    sections = re.split(r"^## `tardygrad ([a-z ]+)", text, flags=re.MULTILINE)
    described = {title.strip(): section for title, section in zip(sections[1::2], sections[2::2], strict=True)}
    assert set(described) == set(verbs())
    for verb, command in verbs().items():
        for option in [option for one in command.params for option in one.opts if option.startswith("--")]:
            assert f"`{option}" in described[verb] or option in ("--json", "--trust"), f"{verb} {option}"


def test_commands_that_the_docs_mention_exist() -> None:
    text = "\n".join(
        page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md"
    )  # which tells of old ones
    first = {verb.split()[0] for verb in verbs()}
    for verb in re.findall(r"(?:`|^|\$ )tardygrad ([a-z]+)", text, re.MULTILINE):
        assert verb in first
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert target in targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra in re.findall(r"pip install .*\.\[([a-z]+)\]", text):
        assert extra in extras


def shell_commands(page: Path) -> Iterator[list[str]]:
    """The words of every tardygrad command in the shell blocks of a page."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else ():
            if line.startswith("tardygrad "):
                yield shlex.split(line, comments=True)[1:]


def test_commands_in_shell_blocks_have_valid_options_and_keys() -> None:
    for words in chain.from_iterable(map(shell_commands, PAGES)):
        known = verbs()
        verb = next(verb for verb in known if words[: len(verb.split())] == verb.split())
        given = words[len(verb.split()) :]
        parsed = known[verb].make_context(verb, given).params  # it runs nothing
        if verb in ("run", "plan", "sweep") and parsed["source"] in shipped():
            spec.load(parsed["source"], parsed["overrides"])


def test_every_key_of_a_spec_is_in_the_cli_docs() -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    for table, kinds in spec.KINDS.items():
        (section,) = re.findall(rf"^### `\[{table}\]`\n(.*?)^##", text, re.MULTILINE | re.DOTALL)
        for kind, make in kinds.items():
            assert f'kind = "{kind}"' in section
            assert not [key for key in keys_of(table, make) if f"`{key}`" not in section]
    for key in spec.parameters(spec.RunTable):
        assert f"`{key}`" in text


def excerpts() -> list[tuple[str, str]]:
    """(code, function) of every row of all tables in algorithm.md whose last columns are `code` and `in`."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs/algorithm.md").read_text("utf-8"), re.M):
        head, _, *rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
        if head[-2:] == ["code", "in"]:
            found += [(row[-2].strip("`"), row[-1].strip("`")) for row in rows]
    assert len(found) > 50
    return found


def test_an_excerpt_stands_in_the_source() -> None:
    for line, where in excerpts():
        assert line in inspect.getsource(pkgutil.resolve_name(f"tardygrad.{where}")), where


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_resolves() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    for page, target in links:
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert "://" in target or linked.exists(), (page, target)
        assert "://" in target or not anchor or anchor in anchors(linked), (page, target)


def test_the_docs_name_no_place_on_somebodys_machine_and_no_file_that_is_gone() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt)/", text), page
        for path in re.findall(r"`((?:docs|examples|experiments|tests|benchmarks|src)/[\w./]+)`", text):
            assert (ROOT / path).exists(), (page, path)
