"""Bad specs: exit code 2, one line that says what is wrong, no traceback, and nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tardygrad as tg
from tardygrad.runs.record import read_json
from tests.cli.conftest import SMALL, Command, Result

GROUPS = "fleet={kind='groups', groups=[{name='a', clients=8, runtime=%s}]}"

OVERRIDES = {
    "no equals sign": ("method.lr", "must be table.key=value, got 'method.lr'. Write method.lr=VALUE."),
    "no table": ("lr=0.1", "must be table.key=value"),
    "rounds without a table": ("rounds=100", "must be table.key=value, got 'rounds=100'. Write run.rounds=100."),
    "a key of two tables": ("seed=3", "Write run.seed=3 or task.seed=3."),
    "Ray's key": ("engine.server_shards=2", "It belongs to 'ray': add engine.kind=ray."),
    "another kind's key": ("method.kind=sgdclip", "To remove it, delete its line or append method.clip="),
    "an empty key": ("method.=1", "must be table.key=value"),
    "an unknown table": ("metod.lr=1", "got `metod`. Did you mean 'method'?"),
    "an unknown key": ("method.bufer=2", "[method] has no key `bufer`. Did you mean 'buffer'?"),
    "an unknown key like no other": ("run.xyz=2", "Known keys: rounds, until, seed"),
    "another engine's key": ("engine.threads=2", "[engine] has no key `threads`. Known keys: workers, batch."),
    "an unknown key of a nested table": ("task.noise.tial=2", "`task.noise` has no key `tial`. Did you mean 'tail'?"),
    "a key below a number": ("method.buffer.x=2", "`method.buffer` must be a table"),
    "a key to remove that is not there": ("method.bufer=", "does not set it. Did you mean 'buffer'?"),
    "a required key removed": ("method.lr=", "[method] needs the key `lr`: a number or a schedule"),
    "a required key of **how removed": ("method.buffer=", "[method] needs the key `buffer`: a whole number."),
    "a required key of a nested table": ("method.lr={value=1}", "`method.lr` needs the key `exponent`: a number."),
    "no kind": ("task.kind=", "[task] needs the key `kind`: one of causal_lm, cifar10, digits, "),
    "an unknown task": ("task.kind=digit", "got 'digit'. Did you mean 'digits'?"),
    "an unknown fleet": ("fleet.kind=papers", "got 'papers'. Did you mean 'paper'?"),
    "an unknown method": ("method.kind=clip3", "got 'clip3'. Did you mean 'clip2'?"),
    "an unknown engine": ("engine.kind=simulator", "must be one of sim, threads"),
    "a kind that is a number": ("method.kind=2", "got 2."),
    "an unknown noise": ("task.noise.kind=gauss", "must be one of stable, student, pareto, got 'gauss'."),
    "a word for a whole number": ("method.buffer=two", "`method.buffer` must be a whole number, got 'two'."),
    "text for a whole number": ("method.buffer='2'", "`method.buffer` must be a whole number, got '2'."),
    "a fraction for a whole number": ("method.buffer=2.5", "must be a whole number, got 2.5."),
    "true for a whole number": ("run.rounds=true", "`run.rounds` must be a whole number, got true."),
    "true for a learning rate": ("method.lr=true", "`method.lr` must be a number or a schedule"),
    "a list for a learning rate": ("method.lr=[1, 2]", "`method.lr` must be a number or a schedule"),
    "a number for yes or no": ("method.downplay=1", "`method.downplay` must be true or false, got 1."),
    "a date for a number": ("method.lr=2020-01-01", "`method.lr` must be a number"),
    "a number for a table": ("task.noise=3", "`task.noise` must be a table, got 3."),
    "a noise without kind": ("task.noise=student", "must be a table, got 'student'. Write task.noise.kind=student."),
    "a misspelt weight": (
        "method={kind='fedasync', local_lr=0.1, lr=1, local_steps=3, weight='hing'}",
        "kind is one of polynomial, hinge, threshold, root, got 'hing'. Did you mean 'hinge'?",
    ),
    "a misspelt mode": ("method.mode=clint", "one of sync, server, client, got 'clint'. Did you mean 'client'?"),
    "an asynchronous mode": ("method.mode=async", "got 'async'. Use 'server' or 'client'."),
    "M > N": ("method.buffer=9", "between 1 and the number of clients (8), got 9"),
    "M = 0": ("method.buffer=0", "`buffer` must be a whole number, 1 or more, got 0."),
    "concurrency > N": ("method.concurrency=9", "`concurrency` must be between 1 and the number of clients (8)"),
    "a NaN learning rate": ("method.lr=nan", "`method.lr` must be a number"),
    "a NaN exponent": ("method.lr={value=1, exponent=nan}", "`method.lr.exponent` must be a number, got nan."),
    "an infinite learning rate": ("method.lr=inf", "in [method]: `lr` must be a finite number"),
    "a negative learning rate": ("method.local_lr=-0.1", "`local_lr` must be a finite number, zero or more, got -0.1."),
    "a negative clip": ("method.clip=-1", "`clip` must be zero or more (inf switches it off), got -1."),
    "a lower threshold above": ("method.lower=2.0", "a lower threshold must not exceed the upper one"),
    "both steps and epochs": ("method.local_epochs=1", "set exactly one of `local_steps` and `local_epochs`"),
    "neither steps nor epochs": ("method.local_steps=", "set exactly one of `local_steps` and `local_epochs`"),
    "a warm-up longer than the run": ("method.lr={peak=1, rounds=5, warmup=9}", "needs 0 <= warmup < rounds"),
    "no rounds": ("run.rounds=0", "in [run]: `rounds` must be a whole number, 1 or more, got 0."),
    "a negative seed": ("run.seed=-1", "`seed` must be a whole number, 0 or more, got -1."),
    "no torch threads": ("run.threads=0", "`threads` must be a whole number from 1 to 1,024, got 0."),
    "no checkpoints": ("run.checkpoint_every=0", "`checkpoint_every` must be a whole number, 1 or more"),
    "no clients": ("task.clients=0", "`task.clients` must be a whole number, 1 or more, got 0."),
    "other clients": ("fleet.clients=9", "`clients` must agree in [task] and [fleet], got 8 and 9."),
    "clients as text": ("task.clients='8'", "`task.clients` must be a whole number, got '8'."),
    "a condition below 1": ("task.condition=0.5", "in [task]: `condition` must be a finite number, 1 or more"),
    "a negative tail": ("task.noise.tail=-1", "in `task.noise`: `tail` must be a finite number, above 0"),
    "absurd sizes": ("task.dimension=4000000000000", "in [task]: not enough memory for these sizes"),
    "unknown stragglers": ("fleet.stragglers=larg", "must be one of mild, large, got 'larg'. Did you mean 'large'?"),
    "a crash of nobody": ("fleet.crashes=[{client=8, at=1}]", "`client` must be between 0 and 7"),
    "a crash after its end": ("fleet.crashes=[{client=1, at=5, back=2}]", "in `fleet.crashes[0]`: Crash needs"),
    "a crash without a client": ("fleet.crashes=[{at=5}]", "`fleet.crashes[0]` needs the key `client`"),
    "a window of one end": ("fleet.available=[{client=1, windows=[[1]]}]", "windows[0]` must be a pair"),
    "a link without way": ("fleet.link={up=0}", "in `fleet.link`: Link needs 0 <= latency < inf, down > 0, up > 0"),
    "a negative server time": ("fleet.server_time=-1", "`server_time` must be finite"),
    "a runtime without kind": (GROUPS % "{low=1}", "`fleet.groups[0].runtime` needs the key `kind`: one of uniform"),
    "an unknown runtime": (GROUPS % "{kind='normal'}", "`fleet.groups[0].runtime.kind` must be one of uniform"),
    "a runtime upside down": (GROUPS % "{kind='uniform', low=3, high=1}", "Uniform needs 0 <= low <= high"),
    "a runtime's key missing": (GROUPS % "{kind='pareto', tail=1}", "needs the key `minimum`: a number."),
    "no groups": ("fleet={kind='groups', groups=[]}", "a fleet needs at least one client"),
    "a number for groups": ("fleet={kind='groups', groups=3}", "`fleet.groups` must be a list, each item a table"),
    "a number for a group": ("fleet={kind='groups', groups=[3]}", "`fleet.groups[0]` must be a table, got 3."),
    "a trace that is not there": ("fleet={kind='trace', path='no.csv'}", "a readable CSV or JSON file, got 'no.csv'"),
    "no workers": ("engine={kind='threads', workers=0}", "`workers` must be a whole number from 1 to 1,024, got 0."),
    "fewer than no processes": ("engine.workers=-3", "`workers` must be a whole number, 0 or more, got -3."),
    "fewer than no jobs": ("engine.batch=-1", "in [engine]: `batch` must be a whole number, 1 or more, got -1."),
    "jobs together in processes": ("engine={workers=2, batch=2}", "got batch=2 with workers=2."),
    "an empty shard": ("task={kind='logistic', clients=8, samples=4}", "every client needs at least one row"),
    "heads that do not divide": ("task={kind='digits', clients=8, heads=5}", "`heads` must divide `dim` (32), got 5."),
    "a text that is not there": ("task={kind='lm', clients=8, text='no.txt'}", "in [task]: `text` must be a file"),
    "markup in a value": ("method.mode='[red]x[/red]'", "got '[red]x[/red]'."),
    "a line break in a key": ('method."a\nb"=1', "[method] has no key"),
}  # fmt: skip


@pytest.mark.parametrize(("override", "fragment"), OVERRIDES.values(), ids=OVERRIDES)
def test_a_bad_override_is_answered_in_one_line(override: str, fragment: str, tardygrad: Command) -> None:
    _refused(tardygrad("run", "small.toml", override, "--out", "out"), fragment)
    if "kind='threads'" not in override:  # a plan starts no engine, and checks only the simulator's values
        _refused(tardygrad("plan", "small.toml", override), fragment)


FILES = {
    "a syntax error": ("[task\nkind = 1", "must be valid TOML", "at line 1, column 6"),
    "a key given twice": ("[run]\nrounds = 1\nrounds = 2\n", "must be valid TOML", "line 3"),
    "nothing": ("", "needs the table [task], got none."),
    "no method": (SMALL.replace("[method]", "[run]").rpartition("[run]")[0], "needs the table [method]"),
    "a number for a table": ("task = 3", "[task] must be a table, got 3."),
    "a list of tables": ("[[task]]\nkind = 'digits'", "[task] must be a table"),
    "no run": (SMALL.partition("[run]")[0], "needs the table [run], got task, fleet, method."),
    "no fleet": (SMALL.replace('[fleet]\nkind = "paper"\n', ""), "needs the table [fleet]"),
    "no clients anywhere": (
        SMALL.replace("clients = 8\n", "").replace('[fleet]\nkind = "paper"', '[engine]\nkind = "threads"'),
        "[task] needs the key `clients`: a whole number.",
    ),
    "bytes that are no text": (b"\xff\xfe[task]", "must be UTF-8 text", "byte 0"),
    "too many brackets": ("x = " + "[" * 20_000, "must be valid TOML"),
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
    os.mkfifo("pipe.toml")
    Path("list.json").write_text("[1, 2]")
    Path("broken.json").write_text('{"task": ')
    for argument, fragment in {
        "digit": "got 'digit'. Did you mean 'digits'?",
        "lst.json": "got 'lst.json'. Did you mean 'list.json'?",
        "no/such/file.toml": "Shipped specs: causal_lm, cifar10, digits, ",
        "folder": "a spec must be a file or the directory of a run, got 'folder'.",
        "pipe.toml": "a spec must be a file or the directory of a run, got 'pipe.toml'. Name a file.",
        "list.json": "a spec must consist of tables, got [1, 2]",
        "broken.json": "a spec must be valid JSON",
        "a\0b": "an argument must have no NUL",
        "[red]": "got '[red]'",
    }.items():
        _refused(tardygrad("run", argument, "--out", "out"), fragment)


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "small.toml", "--out", "x" * 300],
        ["run", "small.toml", "--out", "small.toml/run"],
        ["run", "small.toml", "--out", ""],
        ["run", "x" * 300],
        ["resume", "x" * 300],
        ["replay", "small.toml/run"],
        ["report", "small.toml"],
        ["report", "run", "--out", "small.toml/page.html"],
        ["export", "run", "--out", "small.toml"],
        ["doctor", "x/" * 3000],
        ["sweep", "small.toml", "--out", "small.toml"],
        ["demo", "--out", "small.toml"],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_a_path_that_cannot_be_is_answered_in_one_line(argv: list[str], tardygrad: Command) -> None:
    if "run" in argv[1:2]:
        assert tardygrad("run", "small.toml", "run.rounds=1", "--out", "run").code == 0
    code, _, err = tardygrad(*argv)
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")


def test_a_spec_without_permission_is_answered_in_one_line(tardygrad: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def denied(path: Path, *args: str, **kwargs: str) -> str:
        if path.name == "small.toml":  # root may read anything
            raise PermissionError(13, "Permission denied")
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", denied)
    _refused(tardygrad("run", "small.toml", "--out", "out"), "'small.toml' cannot be read: Permission denied.")


def test_usage_errors_look_the_same(tardygrad: Command) -> None:
    _refused(tardygrad("run"), "Missing argument 'SPEC'")
    _refused(tardygrad("run", "small.toml", "--ouch"), "--ouch")
    _refused(tardygrad("rum"), "No such command 'rum'. Did you mean 'run', 'resume'? See tardygrad --help.\n")
    _refused(tardygrad("run", "--ou"), "No such option '--ou'. Did you mean one of: '--json', '--out'? See")
    _refused(tardygrad("help"), "No such command 'help'. Did you mean '--help'? See tardygrad --help.\n")
    _refused(tardygrad("version"), "No such command 'version'. Did you mean '--version'?")
    _refused(tardygrad("demo", "run.rounds=20"), "argument (run.rounds=20). Did you mean '--rounds 20'? See")
    _refused(tardygrad("demo", "method.lr=20"), "argument (method.lr=20). See tardygrad demo --help.")


@pytest.mark.parametrize("given", [["method.buffer", "=", "3"], ["method.buffer=", "3"], ["method.buffer", "=3"]])
def test_an_override_with_spaces_is_answered_with_the_one_without(given: list[str], tardygrad: Command) -> None:
    fragment = f"must be one word, got {' '.join(given)!r}. Write method.buffer=3, without spaces."
    for verb in ("run", "resume", "plan"):
        _refused(tardygrad(verb, "small.toml", "run.seed=1", *given, "run.rounds=3"), fragment)


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
        with pytest.raises(tg.Invalid, match="a path must have no NUL and no lone surrogate, got "):
            call()


def test_a_directory_in_place_of_a_figure_is_refused(tardygrad: Command) -> None:
    Path("folder.svg").mkdir()
    _refused(tardygrad("tail", "quadratic", "--figure", "folder.svg"), "must be a file")
    assert list(Path().glob("*.draft")) == []


def test_a_path_of_thousands_of_levels_is_refused(tardygrad: Command) -> None:
    deep = "x/" * 2000
    tardygrad("run", "small.toml", "run.rounds=2", "--out", "run")
    for argv in (["run", "small.toml", "--out", deep], ["export", "run", "--out", deep],
                 ["report", "run", "--out", f"{deep}page.html"], ["report", "run", "--figures", deep]):  # fmt: skip
        _refused(tardygrad(*argv), "a path may have at most 255 levels")


def test_errors_are_json_if_that_was_asked_for(tardygrad: Command) -> None:
    result = tardygrad("run", "small.toml", "method.bufer=2", "--json")
    assert (result.code, result.err) == (2, "")
    assert result.json == {"error": "[method] has no key `bufer`. Did you mean 'buffer'?"}
    assert not Path("runs").exists()


def test_a_json_spec_may_say_inf_and_null(tardygrad: Command) -> None:
    tables = {
        "task": {"kind": "quadratic", "clients": 4, "noise": None},
        "fleet": {"kind": "paper"},
        "method": {"kind": "sgdclip", "local_lr": 0.1, "local_clip": "inf", "lr": 1, "buffer": 2, "local_steps": 1},
        "run": {"rounds": 2},
    }
    Path("spec.json").write_text(json.dumps(tables))
    assert tardygrad("run", "spec.json").code == 0


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
