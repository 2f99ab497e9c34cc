"""`run` and `resume`."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from tardygrad.cli.output import say, waiting
from tardygrad.cli.session import check_memory, crowded, engine, print_summary, run_to_end, torch_threads
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs import run as runs
from tardygrad.runs.record import Row, read_json, reading_record, unused, unwritable
from tardygrad.runs.track import check
from tardygrad.spec import spec


def run(source: str, overrides: list[str] | None, out: str | None, max_memory: str | None, json: bool) -> None:
    """Run a spec and record it."""
    loaded = spec.load(source, overrides or ())
    check(loaded.run.track)
    if out:
        unused(Path(out))
    with torch_threads(loaded.run.threads):
        with waiting(f"preparing {loaded.task.kind}; the first time may take minutes"):
            built = loaded.build()
        memory = check_memory(built, max_memory)
        with engine(built) as pool:
            new = runs.begin(built.method, built.task, pool, spec=loaded.resolved(), **loaded.run.settings())
            new.path = path = unused(Path(out)) if out else new_run_dir(loaded.name)  # only once everything is valid
            say(f"{new.server.method} on {loaded.task.kind}, recording in {path}\n{memory}{crowded(new)}")
            run_to_end(new, str(path), json=json, track=loaded.run.track)


def resume(folder: str, overrides: list[str] | None, max_memory: str | None, json: bool) -> None:
    """Continue a recorded run."""
    recorded = read_json(run_dir(folder) / "spec.json")
    loaded = recorded_spec(folder, recorded, overrides or [])
    check(loaded.run.track)
    retrack = any(text.startswith("run.track") for text in overrides or ())
    if not retrack and (summary := finished_summary(Path(folder), loaded.run.rounds)):
        say(f"the run in {folder} has finished its {runs.plural(summary.rounds, 'round')}; add run.rounds=N for more")
        print_summary(summary, folder, json=json)
        return
    with torch_threads(loaded.run.threads):
        with waiting(f"preparing {loaded.task.kind}; the first time may take minutes"):
            built = loaded.build()
        memory = check_memory(built, max_memory)
        with engine(built) as pool:
            rounds = loaded.run.rounds
            resumed = runs.resume(folder, built.method, built.task, pool, rounds=rounds)
            done = resumed.server.round
            if rounds < done:
                raise Invalid(f"`run.rounds` must be at least the rounds already made ({done}), got {rounds}.")
            if overrides:
                resumed.spec_json = recorded | {"spec": loaded.resolved(), "run": recorded["run"] | {"rounds": rounds}}
            start = f"from round {done}, recording in {folder}"
            say(f"{resumed.server.method} on {loaded.task.kind}, {start}\n{memory}{crowded(resumed)}")
            run_to_end(resumed, folder, json=json, track=loaded.run.track)


def run_dir(folder: str) -> Path:
    """The directory of a run; if it is not one, suggest runs/`folder`, or the runs inside the folder."""
    path, inside = Path(folder), Path("runs") / folder
    if not (path / "spec.json").exists():
        if (inside / "spec.json").exists():
            raise Invalid(f"a run must be named by its directory, got {folder!r}. Did you mean {str(inside)!r}?")
        if runs := sorted(str(spec.parent) for spec in path.glob("*/spec.json")):
            more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
            raise Invalid(f"{folder!r} is a folder of runs. Choose one of them: {', '.join(runs[:5])}{more}.")
    return path


def finished_summary(path: Path, rounds: int) -> runs.Summary | None:
    """The summary of a run that has finished exactly these rounds; None if it has not, or is unreadable."""
    try:
        summary = runs.Summary(**read_json(path / "summary.json"))
        str(summary)
    except (Invalid, RecordError, TypeError, ValueError, AttributeError):
        return None
    done = (summary.status, summary.rounds) == ("finished", rounds) and (path / "model.safetensors").exists()
    return summary if done else None


def recorded_spec(folder: str, recorded: Row, overrides: list[str]) -> spec.Spec:
    """The spec of a recorded run; overrides may change its rounds and trackers and, on Ray, the workers."""
    if not recorded.keys() >= {"spec", "run", "versions"}:
        raise RecordError(f"the record in {folder!r} is damaged: its spec.json is incomplete.")
    tables = recorded["spec"]
    if tables is None:
        fix = "In Python, tardygrad.resume(path, method, task, pool) is the run, and tardygrad.replay(run) repeats it."
        raise Invalid(f"the run in {folder!r} was started in Python, without a spec. {fix}")
    with reading_record(Path(folder)):
        allowed = spec.resume_keys(tables)
        for text in overrides:
            if text.partition("=")[0].strip() not in allowed:
                keys = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
                raise Invalid(f"resuming a run may only change {keys}, got {text!r}. Start a new run instead.")
            spec.override(tables, text)
        return spec.parse(tables, Path(folder).name)


def new_run_dir(name: str) -> Path:
    """Create runs/`name`-NUMBER with the next free number; safe when several runs start at once."""
    try:
        Path("runs").mkdir(exist_ok=True)
        for number in count(1):
            path = Path("runs") / f"{name}-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise unwritable(Path("runs"), error) from error
    raise AssertionError  # count never ends
