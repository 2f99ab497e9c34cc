"""Architecture rules: imports follow the layers, the core does no I/O, files stay short, names say what they hold."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/tardygrad"
LAYERS = [
    {"html_tables"},
    {"errors"},
    {"streams", "seeding", "own_code"},
    {"constructors"},
    {"core"},
    {"theory", "optim", "fleet", "tasks"},
    {"methods", "tail"},
    {"engines"},
    {"runs"},
    {"spec", "results"},
    {"sweeps", "doctor"},
    {"report", "flower"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(SOURCE.rglob("*.py"))
SCRIPTS = [
    path
    for folder in ("tools", "benchmarks", "examples", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def imports(path: Path) -> set[str]:
    """Every module a file imports, at whatever depth of the code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def bindings(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the name of every variable and parameter of a file, those of comprehensions and lambdas included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_files_import_only_from_their_own_package_or_layers_above() -> None:
    for path in set(FILES) - {SOURCE / "__init__.py"}:
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "tardygrad" and len(parts) > 1 and parts[1] not in ("__version__", package(path)):
                assert RANK[parts[1]] < RANK[package(path)], f"{path} must not import {name}"


def test_the_core_uses_no_clock_threads_network_files_or_torch_nn() -> None:
    banned = {"time", "datetime", "pathlib", "os", "io", "json", "logging", "socket", "ray", "flwr"}
    banned |= {"threading", "_thread", "concurrent", "multiprocessing", "asyncio", "subprocess"}
    for path in FILES:
        if package(path) in ("streams", "core"):
            found = {name for name in imports(path) if name.split(".")[0] in banned or name.startswith("torch.nn")}
            assert not found, path


@pytest.mark.parametrize(("library", "folder"), [("ray", "ray"), ("flwr", "flower")])
def test_an_engine_s_library_is_imported_in_one_file(library: str, folder: str) -> None:
    users = [path for path in FILES if any(name.split(".")[0] == library for name in imports(path))]
    assert users == [SOURCE / "engines" / folder / "connection.py"]


def test_every_package_has_a_layer() -> None:
    assert {package(path) for path in FILES} - {"__init__", "specs"} <= set(RANK)


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "common", "helpers", "manager", "base", "misc"}
    assert not [path for path in FILES if path.stem in empty]


def test_locals_and_parameters_are_named_after_what_they_hold() -> None:
    banned = {"said", "told", "made", "kept", "there", "one", "asked", "heard"}
    for path in FILES:
        found = sorted((line, name) for line, name in bindings(path) if name in banned)
        assert not found, f"{path.name}: {', '.join(f'`{name}` in line {line}' for line, name in found)}"


def test_every_package_is_within_its_budget() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/size.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_top_level_has_few_files() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 9


def test_no_pool_is_probed_at_run_time() -> None:
    """What an engine can do is declared by the class `Pool`; only its `check_pool` asks whether an object is one."""
    for path in FILES:
        if path == SOURCE / "engines/contract.py":
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"\b(?:hasattr|getattr|isinstance)\((?:self\.)?(?:run\.)?_?pool\b", text), path
        if package(path) != "spec":
            assert not re.findall(r"""kind["\])]* [!=]= ["'](?:sim|threads|ray|flower)["']""", text), path


def test_importing_the_library_has_no_effect() -> None:
    """No thread, no seed, no file: measured in a fresh interpreter."""
    code = (
        "import random, threading, numpy, torch\n"
        "before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),"
        " torch.get_num_threads(), threading.active_count())\n"
        "import tardygrad\n"
        "names = [getattr(tardygrad, name) for name in dir(tardygrad)]\n"
        "after = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist(),"
        " torch.get_num_threads(), threading.active_count())\n"
        "assert before == after\n"
        "import sys\n"
        "assert not {'ray', 'flwr', 'optuna', 'altair', 'pandas'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_scripts_import_only_what_tardygrad_has() -> None:
    nodes = [node for path in SCRIPTS for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tardygrad":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
