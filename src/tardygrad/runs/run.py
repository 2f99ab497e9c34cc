"""Runs: the loop of loop.py with evaluations, metrics, a record and checkpoints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Unpack, cast

from safetensors.torch import save
from torch import Tensor

from tardygrad.constructors import checked
from tardygrad.core.hierarchy import serve
from tardygrad.core.messages import Advanced, ModuleBuffers, Parts, Taken, Update, Vector, as_vector
from tardygrad.core.method import Method
from tardygrad.core.own_loop import check_local_work
from tardygrad.core.task import Task, ids_of, sample_counts, start_vector
from tardygrad.engines.contract import Pool, check_work
from tardygrad.engines.sim.pool import SimPool
from tardygrad.errors import Diverged, Interrupted, Invalid, RecordError, Starved, WorkFailed, is_of_own_code, shortened
from tardygrad.fleet import Fleet
from tardygrad.html_tables import fact_table
from tardygrad.runs import checkpoint, events
from tardygrad.runs.accountant import Accountant
from tardygrad.runs.checks import checksum
from tardygrad.runs.describe import label as label
from tardygrad.runs.describe import training_facts
from tardygrad.runs.describe import versions as versions
from tardygrad.runs.directions import Directions
from tardygrad.runs.evaluation import ClientEvaluations, ScoredRows
from tardygrad.runs.events import RecordedMessage, RunEvent
from tardygrad.runs.loop import Event, drive
from tardygrad.runs.record import EVENTS, End, Record, Row, replace, require_new
from tardygrad.runs.settings import Settings, change_run, with_defaults
from tardygrad.runs.summary import MODEL, summarize, write_summary
from tardygrad.runs.summary import Summary as Summary
from tardygrad.runs.summary import plural as plural
from tardygrad.runs.tables import ready_method, spec_of
from tardygrad.tail.updates import Updates


def check_run(method: Method, task: Task, pool: Pool, settings: Settings) -> None:
    """Raise `Invalid` unless method, task, pool and settings fit together."""
    check_work(pool, method, task)
    check_local_work(task, method)
    if settings["evaluate_every"] and not task.can_evaluate:
        raise Invalid("an evaluation needs a test set, and the task has none. Give it one, or set evaluate_every=0.")
    if settings["until"] is not None and pool.deadline is None and pool.pending() is not None:
        rule = "`until` needs an engine that knows a `deadline` if its runs can be resumed"
        raise Invalid(f"{rule}, got {type(pool).__name__}. Set its attribute `deadline`, or use rounds.")
    ClientEvaluations(task, settings["evaluate_clients"], pool)
    if method.weight_by == "samples" and task.counts_by_opening and not pool.opens_data:
        fix = "Give the task samples=[...], a number for each client."
        raise Invalid(f'weight_by="samples" cannot count rows: on this engine only workers open the data. {fix}')


class Run:
    """A run: its server, pool and task, the results so far, and its record."""

    def __init__(self, method: Method, task: Task, pool: Pool, settings: Settings) -> None:
        check_run(method, task, pool, settings)
        seed = settings["seed"]
        x = start_vector(task, seed)
        buffers = task.init_module_buffers()
        samples = sample_counts(task, method.weight_by)
        self.accountant = Accountant(method.privacy) if method.privacy else None
        pool.begin()
        self.server = serve(
            method, x, clients=task.clients, seed=seed, module_buffers=buffers, vectors=pool.vectors, samples=samples
        )
        if settings["tail_every"] and isinstance(self.server.levels[0].vectors.start, Parts):
            raise Invalid("`tail_every` needs whole updates, and the engine has them in shards. Use server_shards=1.")
        self.task, self.pool, self.settings = task, pool, settings
        self.tail = Updates(every=settings["tail_every"], seed=seed, parameters=len(x), buffer=method.buffer)
        self.scores = ScoredRows(task, pool.evaluator)
        self.client_evaluations = ClientEvaluations(task, settings["evaluate_clients"], pool)
        self.client_evaluation: events.ClientEvaluation | None = None  # the last one
        self.path: Path | None = None  # of the record; None keeps the metrics in memory only
        self.spec_json: Row | None = None  # content of spec.json; None: keep the existing file
        self.resumed = False
        self.end: End | None = None  # of events.jsonl at the checkpoint that the run is resumed from, if there is one
        self.from_checkpoint: str | None = None  # its name
        self.discarded: list[Sequence[int]] = []  # clients of private rounds that were made after it, and are lost
        self.record: Record | None = None
        self.metrics: list[Row] = []
        self._script: list[RecordedMessage] = []  # without a record, whose events have it
        self.counts: Counter[str] = Counter()  # of the events, by kind
        self.refused: Counter[str] = Counter()  # updates, by reason
        self.faults: dict[int, str] = {}  # the first of each client that sent updates that are not finite
        self.status = "new"  # then running, then finished, stopped, starved, diverged or failed
        self.reason: str | None = None  # why it starved or diverged
        self._stop = False
        self.seconds = 0.0  # of computing, up to the last resume or end
        self._began = 0.0  # when `go` was called
        self._saver = None if pool.virtual_clock else checkpoint.Saver()  # writes while the workers go on

    def __repr__(self) -> str:
        of = "" if self.settings["rounds"] is None else f" of {self.settings['rounds']}"
        return f"Run({self.server.method}: {self.status}, round {self.server.round}{of})"

    def _repr_html_(self) -> str:
        summary = self.summary()
        scores = {"accuracy": summary.accuracy, "loss": summary.loss, **summary.scores}
        facts = {
            "status": f"{summary.status}{f': {summary.reason}' if summary.reason else ''}",
            "rounds": f"{summary.rounds:,}",
            "clock": f"{summary.time:,.6g} {'simulated ' * self.pool.virtual_clock}seconds",
            **{f"test {name}": f"{value:.4g}" for name, value in scores.items() if value is not None},
            "delay": f"{summary.delay_mean:.1f} on average, {summary.delay_max} at most",
            "updates": f"{summary.updates:,}, {sum(summary.refused.values()):,} refused, {summary.lost:,} lost",
            **({} if self.path is None else {"record": self.path}),
        }
        return fact_table(summary.method, facts)

    @property
    def x(self) -> Vector:
        """The global model."""
        return self.server.x

    @property
    def module_buffers(self) -> ModuleBuffers | None:
        """The buffers that go with it, if the model has any."""
        return self.server.module_buffers

    @property
    def script(self) -> list[RecordedMessage]:
        """The order of messages, for a `ScriptedPool`; read from the record, if there is one."""
        if self.path is None:
            return self._script
        if self.status == "running" and self.record:
            self.record.end()  # writes what is still in memory
        path = (self.record.path if self.record else self.path) / EVENTS
        length = self.end.length if self.end and not self.record else None
        return list(events.read_script(path, length))

    def facts(self) -> str:
        """Markdown about the training, for the model card that `save_pretrained` of a task writes."""
        return training_facts(self.spec_json or {}, self.summary())

    def go(self) -> Generator[Row, None, None]:
        """Run to the end and yield the metrics of each round. Call `stop` to end early; the run can be resumed."""
        self._began = time.perf_counter()
        self.scores.hold_last = self.settings["until"] is not None and self.settings["evaluate_every"] > 0
        if not self._stop:
            self.pool.interrupt(False)  # withdraw an interrupt of an earlier run
        if self.path:
            self.record = Record(self.path, self.spec_json, new=not self.resumed)
        self.status, self.reason = "running", None
        try:
            if self.record and self.resumed:
                if checkpoint.newest(self.record.path / "checkpoints") != self.from_checkpoint:  # before it was locked
                    place = repr(str(self.record.path))
                    raise RecordError(f"another process has meanwhile continued the run in {place}. Resume it again.")
                self.record.rewind(self.end)
                # the clients' compression errors are not in the checkpoint
                if self.pool.wire != "float32" or self.discarded:
                    self._write(events.Resume(self.pool.now, self.server.round, self.discarded or None))
            for turn in drive(self.server, self.pool, self.settings["rounds"], until=self.settings["until"]):
                for event in events.of_turn(turn, self.server.round, self._spent()):
                    self._write(event)
                self._sample_tail(turn)
                advanced = turn.happened if isinstance(turn.happened, Advanced) else None
                if advanced:
                    self._evaluate(turn.time, advanced)
                rows = self._write_metrics()
                if advanced and self._checkpoint_due(advanced.round):
                    self._checkpoint()
                yield from rows
                if self._stop:
                    self.status = "stopped" if self._may_continue() else "finished"
                    break
            else:
                self.status = "finished"
            if self.status == "finished":
                self._evaluate_last()
                yield from self._write_metrics(wait=True)
        except Interrupted:
            self.status = "stopped"
        except GeneratorExit:  # the caller's loop has ended early
            self.status = "stopped"
            raise
        except (Starved, Diverged) as error:
            self.status, self.reason = type(error).__name__.lower(), str(error)
            raise
        except BaseException as error:
            self.status, self.reason = "failed", shortened(str(error), 3000) or type(error).__name__
            if self._saver:
                self._saver.finish()
            if isinstance(error, WorkFailed | Invalid) or is_of_own_code(error):  # else it may be the record itself
                self._write_summary()
            raise
        finally:
            try:
                if self.status != "failed":  # else the state may be inconsistent: the last checkpoint stays
                    self._end()
            finally:
                self._stop = False
                if self.record:
                    self.record.close()

    def limit(self, until: float) -> None:
        """Shorten a run that has not started: it ends after `until` seconds of the engine's clock at the latest."""
        self.settings["until"] = until = min(until, self.settings["until"] or until)
        if self.spec_json:
            change_run(self.spec_json, {"until": until})

    def stop(self) -> None:
        """End with a checkpoint: at once if the pool can be interrupted, else at the next message."""
        self._stop = True
        self.pool.interrupt()

    def summary(self) -> Summary:
        """The results so far."""
        return summarize(self)

    def _sample_tail(self, turn: Event) -> None:
        """If an estimate of the tail index is due, sample this update; at the end of the round, record the estimate."""
        now, message, happened, _ = turn
        if not isinstance(message, Update) or not isinstance(happened, Taken | Advanced):
            return
        advanced = isinstance(happened, Advanced)
        if self.tail.due(self.server.round + (not advanced)):
            self.tail.take(as_vector(message.delta))
            if advanced:
                self._write(events.tail_event(now, self.server.round, self.tail.estimate()))

    def _write(self, event: RunEvent) -> None:
        self._remember(event)
        durable = bool(self.accountant and self._saver and events.released(event))  # else a crash may lose the account
        if self.accountant and isinstance(event, events.Advance):
            event = event._replace(epsilon=self.accountant.epsilon)
        if self.record:
            self.record.write_event(events.to_row(event), durable=durable)

    def _remember(self, event: RunEvent) -> None:
        """Keep what the summary needs, and without a record what a replay needs."""
        self.counts[events.kind_of(event)] += 1
        if isinstance(event, events.Refusal):
            self.refused[event.reason] += 1
            if event.fault:
                self.faults.setdefault(event.client, event.fault)
        if isinstance(event, events.ClientEvaluation):
            self.client_evaluation = event
        if self.accountant:
            self.accountant.add(*events.released(event))
        if self.path is None and isinstance(event, RecordedMessage):
            self._script.append(event)

    def _find_discarded(self) -> None:
        """Find the private rounds after the checkpoint that the run will not repeat, because its clock is real."""
        if self.path and self.accountant and not self.pool.virtual_clock:
            self.discarded = events.released_after(self.path / EVENTS, self.counts.total())

    def _may_continue(self) -> bool:
        """Whether the run has rounds left."""
        rounds = self.settings["rounds"]
        return rounds is None or self.server.round < rounds

    def _evaluate_last(self) -> None:
        """Evaluate the last round if the time was up before the next evaluation."""
        round, model = self.server.round, (self.server.x, self.server.module_buffers)
        self.scores.evaluate_last(model)
        last = self.client_evaluation
        if round and self.client_evaluations.every and (last is None or last.round < round):
            self._write(self.client_evaluations.evaluate(self.pool.now, round, model))

    def _evaluate(self, now: float, advanced: Advanced) -> None:
        """Queue the metrics of a round, with its model if it is to be evaluated, and evaluate clients."""
        every, round = self.settings["evaluate_every"], advanced.round
        due = every and (round % every == 0 or round == self.settings["rounds"])
        model = (self.server.x, self.server.module_buffers) if due else None
        spent = {"epsilon": self.accountant.epsilon} if self.accountant else {}
        self.scores.add({"time": now, **advanced._asdict(), **spent}, model)
        if self.client_evaluations.due(round, self.settings["rounds"]):
            self._write(self.client_evaluations.evaluate(now, round, (self.server.x, self.server.module_buffers)))

    def _write_metrics(self, *, wait: bool = False) -> list[Row]:
        """Write the rows whose scores are complete, and return them."""
        rows = []
        for row, scores, seconds in self.scores.completed(wait=wait):
            if scores is not None:
                row |= events.test_scores(scores)
                self._write(events.Evaluation(self.pool.now, row["round"], scores, seconds))
            self.metrics.append(row)
            rows.append(row)
        return rows

    def _spent(self) -> float:
        return self.seconds + time.perf_counter() - self._began

    def _checkpoint_due(self, round: int) -> bool:
        every = self.settings["checkpoint_every"]
        if self._saver:  # writes in the background: a crash may lose the newest checkpoint, so write twice as many
            every = max(every // 2, 1)
        return round % every == 0 and self._may_continue()

    def _checkpoint(self) -> None:
        if self.record and (pending := self.pool.pending()) is not None:
            state = checkpoint.capture(self.server, pending, self.tail.collected, self.scores.models)
            facts = {"end": self.record.end(), "seconds": self._spent(), "rows": len(self.metrics)}
            write = partial(_save, self.record, state, facts)
            if self._saver and self.settings["checkpoint_every"] > 1:
                self._saver.begin(write)
            else:
                write()

    def _end(self) -> None:
        if self.status != "stopped":
            with suppress(Interrupted):
                self._write_metrics(wait=True)
        elif not self.record:
            self.scores.cancel()
            self._write_metrics()
        self._checkpoint()
        if self._saver:
            self._saver.finish()
        if self.record:
            model = save({name: tensor.cpu().contiguous() for name, tensor in self._tensors().items()})
            replace(self.record.path / MODEL, model)
            self._write_summary({MODEL: checksum(model)})

    def _tensors(self) -> dict[str, Tensor]:
        """The model in the record: by name if the task has names, else as the vector and the buffers."""
        return self.task.state_dict(self.server.x, self.server.module_buffers)

    def _write_summary(self, checks: dict[str, str] | None = None) -> None:
        self.seconds = self._spent()
        if self.record:
            write_summary(self.record, self.summary(), checks or {})


def _save(record: Record, state: checkpoint.Checkpoint, facts: Row) -> None:
    record.sync()
    checkpoint.save(record.path / "checkpoints", state, id=record.id, **facts)


@checked
def simulate(
    method: Method, task: Task, fleet: Fleet, *, workers: int = 1, batch: int = 1, **settings: Unpack[Settings]
) -> Run:
    """Run a method on a simulated fleet.

    Args:
        workers: processes that compute the jobs; see `SimPool`.
        batch: jobs that are computed at once.
        settings: of the run; see `Settings`.
    """
    settings = with_defaults(settings)
    with SimPool(task, method, fleet, workers=workers, batch=batch, rounds=settings["rounds"]) as pool:
        return train(method, task, pool, **settings)


@checked
def train(method: Method, task: Task, pool: Pool, **settings: Unpack[Settings]) -> Run:
    """Run a method on any pool."""
    run = begin(method, task, pool, **settings)
    for _ in run.go():
        pass
    return run


def simulated(method: Method, task: Task, pool: Pool | Fleet, settings: Settings) -> Pool:
    """A pool, or the simulator of a fleet."""
    return SimPool(task, method, pool, rounds=settings["rounds"]) if type(pool) is Fleet else cast(Pool, pool)


@checked
def begin(
    method: Method, task: Task, pool: Pool | Fleet, *, spec: Row | None = None, **settings: Unpack[Settings]
) -> Run:
    """A run that has not started: iterate over its `go()` to see the metrics of every round.

    Args:
        pool: an engine, or a fleet to simulate.
    """
    full = with_defaults(settings)
    full["lower_is_better"], full["higher_is_better"] = Directions.for_task(task, full)
    out = full.pop("out", None)
    pool = simulated(method, task, pool, full)
    run = Run(method, task, pool, full)
    fleet = pool.fleet
    run.spec_json = {
        **({"spec": spec} if spec else spec_of(method, task, pool, cast(Row, full))),
        "method": str(method),
        **({"ready_method": ready} if (ready := ready_method(method)) else {}),
        "label": label(method),
        "clients": task.clients,
        "parameters": task.parameters,
        "ids": ids_of(task),
        "classes": [(group.name, group.clients) for group in fleet.groups] if fleet else [],
        "random_fleet": fleet.is_random if fleet else None,
        **({"no_replay": reason} if (reason := pool.no_replay) else {}),
        "clock": "simulated" if pool.virtual_clock else "real",
        "run": full,
        "versions": versions(),
    }
    run.path = None if out is None else require_new(Path(out))
    return run
