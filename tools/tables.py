"""Write tables of docs/ and the pages of methods, from signatures and docstrings: `make tables`. A test compares.

A page has a table between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args, get_type_hints

import typer
from pydantic import TypeAdapter

from tardygrad.cli.commands import app
from tardygrad.constructors import Make, Parameters, described, parameters, rule, written
from tardygrad.core.method import Method
from tardygrad.fleet import Fleet
from tardygrad.methods.shared import MethodSettings
from tardygrad.runs import events
from tardygrad.runs import kinds as spec
from tardygrad.runs.settings import RunTable
from tardygrad.spec.schema import described_keys

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
LABELS = {"When to use": "When to use it", "Differs from the paper in": "Differences from the paper"}
API = ("tardygrad", "tardygrad.optim", "tardygrad.theory")  # where the names of docs/api.md are
SHARED = ("buffer", "mode", *MethodSettings.__annotations__)


def table(headings: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [headings, ["---" for _ in headings], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def commands() -> str:
    """Every verb with its arguments, and the first sentence of its help."""

    def rows(command: Any, path: str) -> Iterable[tuple[str, str]]:
        for name, each in command.commands.items():
            if hasattr(each, "commands"):
                yield from rows(each, f"{path} {name}")
                continue
            arguments = [one.metavar for one in each.params if one.param_type_name == "argument"]
            required = [
                f"{one.opts[0]} {one.type.name.upper()}"
                for one in each.params
                if one.required and one.opts[0][0] == "-"
            ]
            more = f" ([more]({name}.md))" if (ROOT / f"docs/{name}.md").exists() else ""
            usage = " ".join([path, name, *arguments, *required])
            yield f"`{usage}`", each.help.partition("\n")[0].rstrip(".") + more

    return table(("command", "what it does"), rows(typer.main.get_command(app), "tardygrad"))


def methods() -> str:
    """Every method with its constructor, what it does, and its paper."""
    rows = []
    for kind, make in spec.KINDS["method"].items():
        name, text = _title(make)
        reference = " ".join((inspect.getmodule(make).__doc__ or "").split("\n\n")[1].split())
        authors, paper = re.match(r"(.*?(?:\w{2,}|et al))\. (.*)", reference).groups()  # type: ignore[union-attr]
        first, *others = authors.removesuffix(" et al").split(", ")
        etal = " et al." if others or authors.endswith("et al") else ""
        rows.append((f"[{name}](methods/{kind}.md)", f"`{kind}`", text, f"{first}{etal}: {paper.rstrip('.')}"))
    return table(("method", "constructor", "what it does", "paper"), rows)


def constructors() -> str:
    """The signatures of the methods."""
    rows = []
    for kind, make in spec.KINDS["method"].items():
        names = [name for name in inspect.signature(make).parameters if name not in MethodSettings.__annotations__]
        rows.append((f"`{kind}(*, {', '.join(names)}, …)`", _title(make)[1]))
    return table(("name", "what it is"), rows)


def kinds(name: str) -> str:
    """The kinds of a table of a spec, with their keys and defaults."""
    common = {}
    if name == "fleet":
        common = {key: parameter for key, parameter in spec.keys_of(name, Fleet).items() if key != "groups"}
    elif name == "method":
        common = {key: parameter for key, parameter in parameters(Method).items() if key in SHARED}
    groups: dict[str, list[str]] = defaultdict(list)
    for kind, make in spec.KINDS[name].items():
        own = {k: p for k, p in spec.keys_of(name, make).items() if k not in common or p.default != common[k].default}
        groups[_keys(own)].append(f'`kind = "{kind}"`')
    rows = [(", ".join(names), keys) for keys, names in groups.items()]
    return table(("kind", "keys"), [*rows, *([("all", _keys(common))] if common else [])])


def keys(name: str) -> str:
    """What the keys of a table mean; a key that means several things has several rows."""
    makes: dict[str, Make] = spec.KINDS.get(name, {"run": RunTable})
    meanings: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for kind, make in makes.items():
        texts = described_keys(name, make)
        for key, parameter in spec.keys_of(name, make).items():
            meanings[key][rule(parameter.annotation, spec=True), texts[key].rstrip(".")].append(kind)
    rows = []
    for key, found in meanings.items():
        most, *_ = ordered = sorted(found, key=lambda meaning: -len(found[meaning]))
        for value, text in ordered:
            usual = len(found) == 1 or ((value, text) == most and len(found[most]) > len(found))
            of = "" if usual else f" of {', '.join(found[value, text])}"
            rows.append((f"`{key}`{of}", value.replace(" such as {value = 0.1, exponent = -0.5}", ""), text))
    return table(("key", "value", "meaning"), rows)


def run() -> str:
    """The table [run]."""
    texts, known = described_keys("run", RunTable), parameters(RunTable)
    rows = [(f"`{k}`", _shown(p) or "none", texts[k].rstrip(".")) for k, p in known.items()]
    return table(("key", "default", "meaning"), rows)


def _keys(known: Parameters) -> str:
    """Required keys first, then the others with their defaults."""
    required = [f"`{key}`" for key, parameter in known.items() if parameter.default is inspect.Parameter.empty]
    optional = [f"`{k}` {_shown(p)}".rstrip() for k, p in known.items() if p.default is not inspect.Parameter.empty]
    return "; ".join(filter(None, (", ".join(required), ", ".join(optional)))) or "none"


def _shown(parameter: inspect.Parameter) -> str:
    """A default, in TOML; nothing for None and for keys that have none."""
    default = parameter.default
    if default is None or default is inspect.Parameter.empty or default == ():
        return ""
    if dataclasses.is_dataclass(default):
        pairs = written(parameter.annotation, default, parameter.name).items()
        return f"{{{', '.join(f'{key} = {json.dumps(value)}' for key, value in pairs)}}}"
    return f"{default:g}" if isinstance(default, float) else json.dumps(default)


def _title(make: Make) -> tuple[str, str]:
    """The name of a method and what it does: the first line of its docstring or its module's, `Name: text.`"""
    for doc in (inspect.getdoc(make), inspect.getdoc(inspect.getmodule(make))):
        name, colon, text = (doc or "").partition("\n")[0].partition(": ")
        if colon:
            return name, text.rstrip(".")
    raise ValueError(f"{make} needs a docstring that begins with `Name: what it does.`")


def method_page(kind: str, make: Make) -> str:
    """The page of a method, from the docstrings of its module and of its constructor."""
    name, text = _title(make)
    _, reference, *paragraphs = (inspect.getdoc(inspect.getmodule(make)) or "").split("\n\n")
    equations = dedent("\n\n".join(each for each in paragraphs if each.startswith(" ")))
    labelled = {label: text for label, colon, text in (each.partition(": ") for each in paragraphs) if colon}
    notes = [each for each in paragraphs if each[0] != " " and each.partition(": ")[0] not in LABELS]
    known = spec.keys_of("method", make)
    (example,) = re.findall(r"^>>> .*(?:\n.+)*", inspect.getdoc(make) or "", re.MULTILINE)
    return "\n".join(
        [
            f"# {name}\n\n<!-- Written by `make tables` from the docstrings. -->\n",
            f'{_sentence(text)} In Python it is `tg.{kind}(…)`, in a spec `method.kind = "{kind}"`.\n',
            f"> {' '.join(reference.split())}\n",
            f"## The update\n\n```text\n{equations}\n```\n",
            "[Notation](../algorithm.md#notation) explains the symbols.\n",
            *map(_markdown, notes),
            *(f"## {heading}\n\n{_sentence(_markdown(labelled[label]))}" for label, heading in LABELS.items()),
            f"## Example\n\n```pycon\n>>> import tardygrad as tg\n{example.replace(f'{kind}(', f'tg.{kind}(')}\n```\n",
            f"## Settings\n\n{_settings(make, {k: p for k, p in known.items() if k not in SHARED})}",
            f"Every method has these too:\n\n{_settings(make, {key: known[key] for key in SHARED})}",
        ]
    )


def api_pages() -> dict[Path, str]:
    """A page for each section of docs/api.md, with the docstrings of its names."""
    pages = {}
    for section in (ROOT / "docs/api.md").read_text("utf-8").split("\n## ")[1:-1]:
        title = section.partition("\n")[0]
        directives = []
        for name in re.findall(r"^\| `([\w.]+)", section, re.MULTILINE):
            path, value = _resolved(name)
            if inspect.isclass(value):
                directives.append(f".. autoclass:: {path}\n   :members:\n")
            elif inspect.isfunction(value):
                directives.append(f".. autofunction:: {path}\n")
        text = "\n".join(directives)
        note = "<!-- Written by `make tables` from docs/api.md. -->"
        page = ROOT / "docs/api" / f"{title.lower().replace(' ', '-')}.md"
        pages[page] = f"# {title}: docstrings\n\n{note}\n\n```{{eval-rst}}\n{text}```\n"
    return pages


def events_schema() -> str:
    """A JSON schema of the lines of events.jsonl, from the types of the events."""
    lines = []
    for event, kind in events.KINDS.items():
        hints = get_type_hints(kind)
        scores = hints.pop("scores", None)  # of an evaluation: in a line they are keys beside the others
        fields = {field: TypeAdapter(hint).json_schema() for field, hint in hints.items()}
        lines.append(
            {
                "description": inspect.getdoc(kind),
                "properties": {"event": {"const": event}, **fields, "check": {"type": "string"}},
                "required": ["event", *(field for field in fields if type(None) not in get_args(hints[field]))],
                "additionalProperties": {"type": ["number", "null"]} if scores else False,
            }
        )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of events.jsonl"}
    return json.dumps(head | {"type": "object", "oneOf": lines}, indent=1) + "\n"


def _resolved(name: str) -> tuple[str, object]:
    """The path of a name of docs/api.md, and what it is."""
    for parent in API:
        with suppress(AttributeError, ImportError):
            return f"{parent}.{name}", pkgutil.resolve_name(f"{parent}.{name}")
    raise ValueError(f"docs/api.md has a name that does not exist: {name}")


def _settings(make: Make, known: Parameters) -> str:
    """Settings with their defaults, meanings and types."""
    texts = described(make)
    rows = [
        (
            f"`{key}`",
            "required" if parameter.default is inspect.Parameter.empty else _shown(parameter) or "none",
            texts[key].rstrip("."),
            rule(parameter.annotation),
        )
        for key, parameter in known.items()
    ]
    return table(("setting", "default, as in a spec", "meaning", "value in Python"), rows)


def _markdown(paragraph: str) -> str:
    """A paragraph of a docstring; its indented lines become a block, and its pages links."""
    lines = paragraph.splitlines()
    text = " ".join(line for line in lines if not line.startswith(" "))
    block = dedent("\n".join(line for line in lines if line.startswith(" ")))
    return re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", text) + f"\n\n```text\n{block}\n```" * bool(block) + "\n"


def _sentence(text: str) -> str:
    """A text with a capital letter and a full stop."""
    return text[0].upper() + text[1:] + "." * (text.rstrip()[-1] not in ".`")


TABLES = {"commands": commands, "methods": methods, "constructors": constructors, "run": run}


def fill(text: str) -> str:
    """A page with its tables as they should be."""

    def make(match: re.Match[str]) -> str:
        name = match[2]
        what, _, section = name.partition(" ")
        made = TABLES[name]() if name in TABLES else {"kinds": kinds, "keys": keys}[what](section)
        return f"{match[1]}{made}{match[3]}"

    return MARKED.sub(make, text)


def files() -> dict[Path, str]:
    """What every file with generated text should contain."""
    pages = [ROOT / "docs" / page for page in ("api.md", "cli.md", "methods.md")]
    known = {ROOT / "src/tardygrad/cli/spec_keys.json": json.dumps(spec.all_keys(), indent=1) + "\n"}
    known |= {ROOT / f"docs/methods/{kind}.md": method_page(kind, make) for kind, make in spec.KINDS["method"].items()}
    known |= {ROOT / "docs/events.schema.json": events_schema()} | api_pages()
    return known | {page: fill(page.read_text("utf-8")) for page in pages}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
