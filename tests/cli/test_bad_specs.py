"""Bad specs: exit code 2, one line that says what is wrong, no traceback, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.runs.record import read_json
from tests.cli.conftest import SMALL, Command, Result

GROUPS = "fleet={kind='groups', groups=[{name='a', clients=8, runtime=%s}]}"

OVERRIDES = {
    "no equals sign": ("method.lr", "must be table.key=value, got 'method.lr'. Write method.lr=VALUE."),
    "rounds without a table": ("rounds=100", "must be table.key=value, got 'rounds=100'. Write run.rounds=100."),
    "Ray's key": ("engine.server_shards=2", "It belongs to 'ray': add engine.kind=ray."),
    "another kind's key": ("method.kind=sgdclip", "To remove it, delete its line or append method.clip="),
    "an unknown table": ("metod.lr=1", "got `metod`. Did you mean 'method'?"),
    "an unknown key": ("method.bufer=2", "[method] has no key `bufer`. Did you mean 'buffer'?"),
    "an unknown key of a nested table": ("task.noise.tial=2", "`task.noise` has no key `tial`. Did you mean 'tail'?"),
    "a key below a number": ("method.buffer.x=2", "`method.buffer` must be a table"),
    "a key to remove that is not there": ("method.bufer=", "does not set it. Did you mean 'buffer'?"),
    "no kind": ("task.kind=", "[task] needs the key `kind`: one of causal_lm, cifar10, digits, "),
    "true for a whole number": ("run.rounds=true", "`run.rounds` must be a whole number, got true."),
    "a misspelt mode": ("method.mode=clint", "one of sync, server, client, got 'clint'. Did you mean 'client'?"),
    "an asynchronous mode": ("method.mode=async", "got 'async'. Use 'server' or 'client'."),
    "no rounds": ("run.rounds=0", "in [run]: `rounds` must be a whole number, 1 or more, got 0."),
    "a crash of nobody": ("fleet.crashes=[{client=8, at=1}]", "`client` must be between 0 and 7"),
    "no workers": ("engine={kind='threads', workers=0}", "`workers` must be a whole number from 1 to 1,024, got 0."),
    "a line break in a key": ('method."a\nb"=1', "[method] has no key"),
}  # fmt: skip


@pytest.mark.parametrize(("override", "fragment"), OVERRIDES.values(), ids=OVERRIDES)
def test_a_bad_override_is_answered_in_one_line(override: str, fragment: str, tardygrad: Command) -> None:
    _refused(tardygrad("run", "small.toml", override, "--out", "out"), fragment)
    if "kind='threads'" not in override:  # a plan starts no engine, and checks only the simulator's values
        _refused(tardygrad("plan", "small.toml", override), fragment)


FILES = {
    "a syntax error": ("[task\nkind = 1", "must be valid TOML", "at line 1, column 6"),
    "nothing": ("", "needs the table [task], got none."),
    "a number for a table": ("task = 3", "[task] must be a table, got 3."),
    "no fleet": (SMALL.replace('[fleet]\nkind = "paper"\n', ""), "needs the table [fleet]"),
    "no clients anywhere": (
        SMALL.replace("clients = 8\n", "").replace('[fleet]\nkind = "paper"', '[engine]\nkind = "threads"'),
        "[task] needs the key `clients`: a whole number.",
    ),
    "a key of 3,000 levels": (".".join("a" * 3000) + " = 1", "at most 30 levels of tables and lists"),
    "an endless number": (SMALL.replace("clients = 8", "clients = 1" + "0" * 400), "a number of at most 300 digits"),
    "bytes that are no text": (b"\xff\xfe[task]", "must be UTF-8 text", "byte 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES.values(), ids=FILES)
def test_a_bad_file_is_answered_in_one_line(case: tuple[str | bytes, ...], tardygrad: Command) -> None:
    text, *fragments = case
    Path("bad.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    result = tardygrad("run", "bad.toml", "--out", "out")
    for fragment in fragments:
        _refused(result, str(fragment))


def test_what_is_no_file_is_answered_in_one_line(tardygrad: Command) -> None:
    Path("folder").mkdir()
    Path("list.json").write_text("[1, 2]")
    for argument, fragment in {
        "digit": "got 'digit'. Did you mean 'digits'?",
        "no/such/file.toml": "Shipped specs: causal_lm, cifar10, digits, ",
        "folder": "a spec must be a file or the directory of a run, got 'folder'.",
        "list.json": "a spec must consist of tables, got [1, 2]",
        "a\0b": "an argument must have no NUL",
    }.items():
        _refused(tardygrad("run", argument, "--out", "out"), fragment)


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "small.toml", "--out", "x" * 300],
        ["run", "small.toml", "--out", "small.toml/run"],
        ["run", "x" * 300],
        ["replay", "small.toml/run"],
        ["report", "run", "--out", "small.toml/page.html"],
        ["sweep", "small.toml", "--out", "small.toml"],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_a_path_that_cannot_be_is_answered_in_one_line(argv: list[str], tardygrad: Command) -> None:
    if "run" in argv[1:2]:
        assert tardygrad("run", "small.toml", "run.rounds=1", "--out", "run").code == 0
    code, _, err = tardygrad(*argv)
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")


def test_usage_errors_look_the_same(tardygrad: Command) -> None:
    _refused(tardygrad("run"), "Missing argument 'SPEC'")
    _refused(tardygrad("run", "small.toml", "--ouch"), "--ouch")
    _refused(tardygrad("rum"), "No such command 'rum'. Did you mean 'run', 'resume'? See tardygrad --help.\n")
    _refused(tardygrad("run", "--ou"), "No such option '--ou'. Did you mean one of: '--json', '--out'? See")
    _refused(tardygrad("help"), "No such command 'help'. Did you mean '--help'? See tardygrad --help.\n")
    _refused(tardygrad("demo", "run.rounds=20"), "argument (run.rounds=20)")


def test_a_spec_in_place_of_a_run_is_answered_with_the_command_that_starts_one(tardygrad: Command) -> None:
    for verb in ("resume", "replay", "doctor", "export"):
        fragment = "got the file 'small.toml'. If it is a spec, first start a run: tardygrad run small.toml"
        _refused(tardygrad(verb, "small.toml"), fragment)


@pytest.mark.parametrize("given", [["--rounds", "100"], ["--rounds=100"], ["--run.rounds", "100"]])
def test_a_setting_given_as_an_option_is_answered_with_the_override(given: list[str], tardygrad: Command) -> None:
    for verb in ("run", "resume", "plan"):
        option = given[0].partition("=")[0]
        _refused(tardygrad(verb, "small.toml", *given), f"`{option}` is not an option; set it as `run.rounds=100`.")
    _refused(tardygrad("specs", "--rounds", "100"), "No such option")
    _refused(tardygrad("plan", "--help", "0x10", "-inf"), "No such option '-i'")


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
def test_words_that_no_path_can_have_are_refused(word: str, tardygrad: Command) -> None:
    for argv in (["run", "small.toml", "--out", word], ["resume", word], ["run", word]):
        _refused(tardygrad(*argv), "an argument must have no NUL and no lone surrogate")
    method = tg.fedasync(local_lr=0.1, local_steps=1)
    task, fleet = tg.tasks.quadratic(clients=2, dimension=2), tg.Fleet.paper(clients=2)
    for call in (lambda: tg.simulate(method, task, fleet, rounds=1, out=word), lambda: read_json(Path(word))):
        with pytest.raises(tg.Invalid, match="a path must have no NUL"):
            call()


def test_errors_are_json_if_that_was_asked_for(tardygrad: Command) -> None:
    result = tardygrad("run", "small.toml", "method.bufer=2", "--json")
    assert (result.code, result.err) == (2, "")
    assert result.json == {"error": "[method] has no key `bufer`. Did you mean 'buffer'?"}
    assert not Path("runs").exists()


def _refused(result: Result, fragment: str) -> None:
    code, out, err = result
    assert fragment in err
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert not Path("out").exists()
    assert not Path("runs").exists()
