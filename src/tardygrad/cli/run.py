"""`run` and `resume`."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from tardygrad.cli.output import say, waiting
from tardygrad.cli.session import crowded, engine, fit, sit, tell, torch_threads
from tardygrad.errors import Invalid, RecordError
from tardygrad.runs import run as runs
from tardygrad.runs.record import Row, read_json, reading_record, unused, unwritable
from tardygrad.runs.track import check
from tardygrad.spec import spec


def run(source: str, overrides: list[str] | None, out: str | None, max_memory: str | None, json: bool) -> None:
    """Run a spec and record it."""
    asked = spec.load(source, overrides or ())
    check(asked.run.track)
    if out:
        unused(Path(out))
    with torch_threads(asked.run.threads):
        with waiting(f"preparing {asked.task.kind}; a first time may take minutes"):
            built = asked.build()
        memory = fit(built, max_memory)
        with engine(built) as pool:
            begun = runs.begin(built.method, built.task, pool, spec=asked.resolved(), **asked.run.settings())
            begun.path = where = unused(Path(out)) if out else fresh(asked.name)  # claimed when no rule is broken
            say(f"{begun.server.method} on {asked.task.kind}, recording in {where}\n{memory}{crowded(begun)}")
            sit(begun, str(where), json=json, track=asked.run.track)


def resume(folder: str, overrides: list[str] | None, max_memory: str | None, json: bool) -> None:
    """Continue a recorded run."""
    recorded = read_json(there(folder) / "spec.json")
    asked = again(folder, recorded, overrides or [])
    check(asked.run.track)
    shown = any(text.startswith("run.track") for text in overrides or ())
    if not shown and (summary := over(Path(folder), asked.run.rounds)):
        say(f"the run in {folder} has made its {runs.plural(summary.rounds, 'round')}; add run.rounds=N for more")
        tell(summary, folder, json=json)
        return
    with torch_threads(asked.run.threads):
        with waiting(f"preparing {asked.task.kind}; a first time may take minutes"):
            built = asked.build()
        memory = fit(built, max_memory)
        with engine(built) as pool:
            rounds = asked.run.rounds
            resumed = runs.resume(folder, built.method, built.task, pool, rounds=rounds)
            made = resumed.server.round
            if rounds < made:
                raise Invalid(f"`run.rounds` must be at least the rounds already made ({made}), got {rounds}.")
            if overrides:
                resumed.asked = recorded | {"spec": asked.resolved(), "run": recorded["run"] | {"rounds": rounds}}
            where = f"from round {made}, recording in {folder}"
            say(f"{resumed.server.method} on {asked.task.kind}, {where}\n{memory}{crowded(resumed)}")
            sit(resumed, folder, json=json, track=asked.run.track)


def there(folder: str) -> Path:
    """The directory of a run; where there is none, that of its name in runs/ is suggested."""
    inside = Path("runs") / folder
    if not (Path(folder) / "spec.json").exists() and (inside / "spec.json").exists():
        raise Invalid(f"a run must be named by its directory, got {folder!r}. Did you mean {str(inside)!r}?")
    return Path(folder)


def over(path: Path, rounds: int) -> runs.Summary | None:
    """What came of a run, if it has made so many rounds and nothing is left to do; None too if that cannot be read."""
    try:
        summary = runs.Summary(**read_json(path / "summary.json"))
        str(summary)
    except (Invalid, RecordError, TypeError, ValueError, AttributeError):
        return None
    done = (summary.status, summary.rounds) == ("finished", rounds) and (path / "model.safetensors").exists()
    return summary if done else None


def again(folder: str, recorded: Row, overrides: list[str]) -> spec.Spec:
    """The spec of a recorded run; nothing may change but its end, its trackers, and on a cluster the workers."""
    if not recorded.keys() >= {"spec", "run", "versions"}:
        raise RecordError(f"the record in {folder!r} is damaged: its spec.json lacks what was asked for.")
    tables = recorded["spec"]
    if tables is None:
        fix = "Use tardygrad.resume or tardygrad.replay there."
        raise Invalid(f"the run in {folder!r} was begun in Python, without a spec. {fix}")
    with reading_record(Path(folder)):
        allowed = spec.resume_keys(tables)
        for text in overrides:
            if text.partition("=")[0].strip() not in allowed:
                others = f"another {', '.join(allowed[:-1])} or {allowed[-1]}"
                raise Invalid(f"a run may only be resumed with {others}, got {text!r}. Begin a new one.")
            spec.override(tables, text)
        return spec.parse(tables, Path(folder).name)


def fresh(name: str) -> Path:
    """A new directory for a run, claimed at once: several may start at the same time."""
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
