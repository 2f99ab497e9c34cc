"""Continuing a run from its record."""

from __future__ import annotations

import math
import sys
from itertools import zip_longest
from pathlib import Path
from typing import cast

from tardygrad.constructors import checked
from tardygrad.core.method import Method
from tardygrad.core.task import Task, ids_of
from tardygrad.engines.contract import Pool, check_pool
from tardygrad.errors import Invalid, RecordError
from tardygrad.fleet import Fleet
from tardygrad.runs import checkpoint, events
from tardygrad.runs.checks import start_again
from tardygrad.runs.record import EVENTS, End, read_spec, reading_record
from tardygrad.runs.run import Run, simulated
from tardygrad.runs.settings import NAMES, Settings, change_run, with_defaults
from tardygrad.runs.summary import plural, read_summary
from tardygrad.runs.tables import check_objects


@checked
def resume(
    path: str | Path,
    method: Method,
    task: Task,
    pool: Pool | Fleet,
    *,
    rounds: int | None = None,
    until: float | None = None,
) -> Run:
    """A run that continues from its last checkpoint, or from the start if it has none: iterate over its `go()`.

    Args:
        path: the run's directory. Pass the same method, task and pool, or fleet to simulate, as before.
        rounds: T, to make the run longer.
        until: seconds of the engine's clock, to make the run longer; inf: no limit.
    """
    where = Path(path)
    if type(pool) is not Fleet:
        check_pool(pool)
    ids = ids_of(task)
    with reading_record(where):
        spec_json = read_spec(where)
        _check_ids(spec_json.get("ids"), ids, where)
        given = {"rounds": rounds, "until": until}
        recorded = spec_json["run"] | {name: value for name, value in given.items() if value is not None}
        recorded["until"] = None if recorded.get("until") == math.inf else recorded.get("until")
        settings = with_defaults(cast(Settings, {name: recorded[name] for name in NAMES if name in recorded}))
    pool = simulated(method, task, pool, settings)
    if pool.pending() is None:
        raise Invalid(f"cannot resume: {type(pool).__name__} does not support checkpoints.")
    with reading_record(where):
        check_objects(spec_json, method, task, pool, where)
    run = Run(method, task, pool, settings)
    run.path, run.resumed = where, True
    with reading_record(where):
        if longer := {name: recorded.get(name) for name in given if recorded.get(name) != spec_json["run"].get(name)}:
            change_run(spec_json, longer)
            run.spec_json = spec_json
        saved = checkpoint.read(where / "checkpoints", where)
        if saved is None:
            _check_barely_begun(where, settings)
        else:
            run.end, run.from_checkpoint = End(*saved.state["end"]), checkpoint.newest(where / "checkpoints")
            _restore(run, saved, run.end.length)
        run._find_discarded()
    if saved and saved.damaged:
        _warn(run, saved.damaged[0])
    return run


def _check_ids(recorded: list[str] | None, ids: tuple[str, ...] | None, path: Path) -> None:
    """Raise `Invalid` if a task's clients are not those of a record."""
    for client, (was, now) in enumerate(zip_longest(recorded or (), ids or ())):
        if recorded and was != now:
            rule = f"the task's clients must be those of the run in {str(path)!r}, in the same order"
            raise Invalid(f"{rule}, got {now!r} as client {client} in place of {was!r}.")


def _warn(run: Run, reason: str) -> None:
    """Say that a run goes back further than to its newest checkpoint."""
    lines = (cast(Path, run.path) / EVENTS).read_bytes().splitlines()
    lost = max(sum(line.startswith(b'{"event":"advance"') for line in lines) - run.server.round, 0)
    again = f", and {plural(lost, 'round')} will be computed again" if lost else ""
    rule = f"the newest checkpoint cannot be used: {reason}"
    print(f"warning: {rule}. The run goes on from round {run.server.round}{again}.", file=sys.stderr)


def _check_barely_begun(folder: Path, settings: Settings) -> None:
    """Raise `RecordError` if a run without a checkpoint came so far that it must have had one."""
    done = len(events.read_metrics(folder / EVENTS)) if (folder / EVENTS).exists() else 0
    status = read_summary(folder).status if (folder / "summary.json").exists() else "failed"
    if done > settings["checkpoint_every"] or status != "failed":
        rule = f"the run in {str(folder)!r} made {plural(done, 'round')}, but its checkpoints are missing"
        raise RecordError(f"{rule}. {start_again(folder, 'them')}")


def _restore(run: Run, saved: checkpoint.Checkpoint, length: int) -> None:
    """Give a new run, its server and its engine the state of a checkpoint, and the run its earlier metrics."""
    settings, path = run.settings, cast(Path, run.path)
    pending = checkpoint.apply(saved, run.server)
    if not run.server.x.isfinite().all():
        after = f"after {plural(run.server.round, 'round')}"
        raise Invalid(
            f"a run that diverged cannot be resumed: the model in {str(path)!r} is not finite {after}. "
            "Start a new run with a smaller lr, or clip."
        )
    if (done := run.server.round) > (settings["rounds"] or done):
        raise Invalid(f"`rounds` must be at least the rounds already made ({done}), got {settings['rounds']}.")
    if pending.now > (settings["until"] or pending.now) and run.pool.virtual_clock:
        rule = f"`until` must be at least the seconds already simulated ({pending.now:g})"
        raise Invalid(f"{rule}, got {settings['until']:g}.")
    run.status = "stopped" if run._may_continue() else "finished"
    run.pool.restore(pending)
    run.tail.collected, run.seconds = saved.part("tail"), saved.state["seconds"]
    rows, complete = events.read_metrics(path / EVENTS, length), saved.state["rows"]
    run.metrics = rows[:complete]
    run.scores.restore(rows[complete:], saved.part("unscored"))
    for event in events.read_events(path / EVENTS, length):
        run._remember(event)
