"""Asynchronous Flower apps: `client_app` and `server_app`, or `AsyncStrategy` for a ClientApp of your own.

Flower itself is imported when one of these is called (extra `flower`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack, cast

from tardygrad.constructors import Table, checked
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task
from tardygrad.engines.flower import connection
from tardygrad.engines.flower.client import ClientWork, Make, node_content
from tardygrad.engines.flower.nodes import count_nodes
from tardygrad.engines.flower.pool import FlowerPool as FlowerPool
from tardygrad.engines.flower.pool import stopping_on_interrupt
from tardygrad.engines.flower.records import HANDSHAKE, JobMessages, array_record, arrays_of
from tardygrad.engines.flower.weights import BUFFERS, Evaluate, WeightsTask, squares_record
from tardygrad.engines.ray.connection import check_loopback, ray_module
from tardygrad.engines.threads import torch_threads
from tardygrad.errors import Invalid, check_integer, check_number, type_and_first_line
from tardygrad.own_code import check_trust
from tardygrad.runs import run as runs
from tardygrad.runs.kinds import TABLES
from tardygrad.runs.record import Row, new_run_dir, read_spec
from tardygrad.runs.resume import resume as resume_run
from tardygrad.runs.settings import Settings
from tardygrad.runs.summary import plural
from tardygrad.runs.track import tracked
from tardygrad.spec import spec as specs
from tardygrad.spec.sources import read_source
from tardygrad.tasks.trainer_task import SquaredMoves

ENGINE = {"kind": "flower"}
"""The table [engine] of a spec for these apps; it replaces that of any other kind of engine."""


@checked
def client_app(source: str | Path | Table | Make, *, mods: Sequence[Any] = (), trust: bool = False) -> Any:
    """A Flower ClientApp that does the jobs of a `server_app`.

    A node makes method and task from its own source, and refuses the jobs of a server whose settings differ.

    Args:
        source: as in `server_app`. A process calls a function once for each node; in a deployment Flower starts a
            process for each job.
        mods: Flower's mods, applied to each job.
        trust: as in `server_app`.
    """
    for mod in mods:
        if not callable(mod):
            raise Invalid(f"`mods` must be a list of functions, got {mod!r}.")
    found = _Source("client_app", source, trust, {"run.rounds": 1})  # the server's may come from its settings
    work = ClientWork(found.on_node, own_data=callable(source))
    return connection.client_app({JobMessages.kind: work.train, JobMessages.handshake: work.query}, list(mods))


@checked
def server_app(source: str | Path | Table | Make, *, trust: bool = False, **settings: Unpack[Settings]) -> Any:
    """A Flower ServerApp that runs a method asynchronously, and records the run.

    Keys `task.…`, `method.…`, `engine.…` and `run.…` of the app's run config are those of a spec and override it; `out`
    is the record's directory, and `resume=true` continues the run that is there. Paths are relative to the directory in
    which Flower starts the ServerApp. Without `out` a new directory in runs/ is made.

    Args:
        source: a spec (its name, file or tables), or a function of Flower's `Context` that returns method and task.
        trust: whether to import code that a record names, if the spec is in a record's folder.
        settings: of the run, in place of the table [run]; see `Settings`.
    """
    given = cast(Row, settings)
    out = given.pop("out", None)
    found = _Source("server_app", source, trust, {f"run.{key}": x for key, x in given.items() if x is not None})
    app = connection.flwr().ServerApp()
    app.main()(partial(_serve, found, out))
    return app


def _serve(source: _Source, default: str | Path | None, grid: Any, context: Any) -> None:
    """The main function of a ServerApp."""
    config = context.run_config
    out, resume = config.get("out") or default, config.get("resume", False)
    if not isinstance(resume, bool):
        raise Invalid(f"`resume` in the run config must be true or false, got {resume!r}.")
    built, spec, name = source.on_server(context)
    with torch_threads(built.run.threads), built.pool(grid) as pool:
        if resume:
            run = _resumed(out, built, spec, pool)
        else:
            given: Any = built.run.settings() | {"out": out or new_run_dir(name)}
            run = runs.begin(built.method, built.task, pool, spec=spec, **given)
        _go(run, built.run.track)


class _Source:
    """What an app makes method and task from.

    Args:
        app: the function of this module that got it, for error messages.
        settings: keys of a spec, which override it.
    """

    def __init__(self, app: str, source: Any, trust: bool, settings: Row) -> None:
        if not callable(source) and not isinstance(source, str | Path | dict):
            raise Invalid(f"`{app}` needs a spec or a function that returns method and task, got {source!r}.")
        self._app, self._source, self._trust, self._settings = app, source, trust, settings

    def on_node(self, context: Any) -> tuple[Method, Task]:
        """Method and task of a node."""
        return self._returned(context) if callable(self._source) else self.spec(context).build()[:2]

    def on_server(self, context: Any) -> tuple[specs.Built, Row | None, str]:
        """What a run needs, its spec if there is one, and its name."""
        if not callable(self._source):
            spec = self.spec(context)
            return spec.build(), spec.resolved(), spec.name
        tables = self._overridden({"run": {}}, context)
        for table in tables.keys() - {"engine", "run"}:
            rule = "the run config can override task and method only of a spec"
            raise Invalid(f"{rule}, and server_app was given a function, got `{table}.…`.")
        return specs.with_tables(*self._returned(context), tables), None, "flower"

    def spec(self, context: Any) -> specs.Spec:
        """The spec, with what the run config overrides."""
        source, given = self._source, isinstance(self._source, dict)
        name, tables, recorded = ("flower", source, False) if given else read_source(source)
        if recorded and not self._trust:
            check_trust(tables, str(source), f"write {self._app}(..., trust=True)")
        return specs.parse(self._overridden(tables, context), name, trust=True)

    def _returned(self, context: Any) -> tuple[Method, Task]:
        returned = self._source(context)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Method)):
            parts = returned if isinstance(returned, tuple) else (returned,)
            got = ", ".join(type(part).__name__ for part in parts)
            raise Invalid(f"the function of a {self._app} must return a method and a task, got {got}.")
        return returned

    def _overridden(self, tables: Table, context: Any) -> Table:
        """The tables of a spec with this engine, and with what settings and run config override."""
        tables = json.loads(json.dumps(tables))
        if not ENGINE.items() <= tables.get("engine", {}).items():
            tables["engine"] = dict(ENGINE)
        config = {key: x for key, x in context.run_config.items() if key.partition(".")[0] in TABLES and "." in key}
        for key, value in (self._settings | config).items():
            specs.override(tables, f"{key}=" if value == "" else f"{key}={json.dumps(value)}")
        if not ENGINE.items() <= tables["engine"].items():
            got = repr(tables["engine"].get("kind"))
            raise Invalid(f"`engine.kind` of a Flower app must be flower, got {got}. Leave it out.")
        return tables


def _resumed(out: str | Path | None, built: specs.Built, spec: Row | None, pool: Any) -> runs.Run:
    """The run in a directory, to be continued; raises `Invalid` if its spec differs in more than may change."""
    path = _recorded(out)
    recorded = read_spec(path)
    before, allowed = recorded.get("spec") or {}, specs.resume_keys(spec or {})
    for table, values in (spec or {}).items():
        for key, value in values.items():
            was = before.get(table, {}).get(key, value)
            if was != value and f"{table}.{key}" not in allowed:
                rule = f"resuming a run may only change {', '.join(allowed)}"
                raise Invalid(f"{rule}, got {table}.{key}={value!r} in place of {was!r}. Start a new run instead.")
    rounds, until = built.run.rounds, built.run.until
    run = resume_run(path, built.method, built.task, pool, rounds=rounds, until=until or math.inf)
    if spec:
        settings = recorded["run"] | {"rounds": rounds, "until": until}
        run.spec_json = recorded | {"spec": spec, "run": settings}
    return run


def _recorded(out: str | Path | None) -> Path:
    """The directory of a run to be resumed; raises `Invalid` if there is none."""
    if not out or not (Path(out) / "spec.json").exists():
        raise Invalid(f"`resume` needs `out`, the directory of the run's record, got {str(out or 'none')!r}.")
    return Path(out)


def _go(run: runs.Run, track: Sequence[Any]) -> None:
    """Run to the end; print what runs, scores and the summary."""
    recorded = f", recording in {run.path}" if run.path else ""
    print(f"{run.server.method} on {plural(run.task.clients, 'client')}{recorded}", flush=True)
    for row in tracked(run, list(track)) if track else run.go():
        scores = {name.removeprefix("test_"): value for name, value in row.items() if name.startswith("test_")}
        if scores:
            text = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
            print(f"round {row['round']}, {row['time']:.1f} s: {text}", flush=True)
    print(run.summary(), flush=True)


class AsyncResult(NamedTuple):
    """The result of `AsyncStrategy.start`."""

    arrays: Any  # the final weights, an ArrayRecord
    run: runs.Run

    def __repr__(self) -> str:
        return f"AsyncResult(arrays={list(self.arrays)}, run={self.run})"  # without the bytes of the arrays


class AsyncStrategy:
    """Runs a method of tardygrad on a ClientApp of your own, in place of one of Flower's strategies.

    The ClientApp's train function takes weights ("arrays") and returns weights; δ is their difference. For delay
    compensation it also returns its squared moves; see `squares`. Clients are not evaluated; `evaluate_fn` is.

    Args:
        method: without local steps (`local_lr`), which the ClientApp makes.
        clients: their number; None: that of the nodes online at the start, or, for a resumed run, of its record.
        samples: number of training rows of each client, for a method with `weight_by="samples"`.
        module_buffers: a regular expression for the names of arrays that are averaged and not optimized, such as the
            statistics of BatchNorm.
        engine: other arguments of the `FlowerPool`, such as {"patience": inf}.
        settings: of the run, such as `out`, the directory of its record; see `Settings`.
    """

    @checked
    def __init__(
        self,
        method: Method,
        *,
        clients: int | None = None,
        samples: Sequence[int] | None = None,
        module_buffers: str = BUFFERS,
        engine: Mapping[str, Any] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        check_method(method)
        if clients is not None:
            check_integer("clients", clients)
        self._method, self._clients, self._samples, self._buffers = method, clients, samples, module_buffers
        self._engine, self._settings = dict(engine or {}), settings
        for name in ("task", "method", "grid"):
            if name in self._engine:
                raise Invalid(f"`engine` must have only settings of a FlowerPool, such as `patience`, got `{name}`.")
        self.run: runs.Run | None = None

    @checked
    def start(
        self,
        grid: Any,
        initial_arrays: Any,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: Mapping[str, Any] | None = None,
        evaluate_config: Mapping[str, Any] | None = None,
        evaluate_fn: Evaluate | None = None,
        *,
        resume: bool = False,
    ) -> AsyncResult:
        """Run to the end. The arguments are those of `start` of Flower's strategies.

        Args:
            num_rounds: number of rounds; None: as the settings say.
            timeout: seconds after which a job without a reply is lost: `ttl` of the `FlowerPool`.
            train_config: sent with every job, with `server-round` added.
            evaluate_config: must be empty, because clients are not evaluated.
            evaluate_fn: scores of weights on the server; called every `evaluate_every` rounds.
            resume: continue the run in `out`.
        """
        if evaluate_config:
            fix = "Leave it out, and evaluate on the server (evaluate_fn)."
            raise Invalid(f"`evaluate_config` must be empty, because clients are not evaluated. {fix}")
        if not isinstance(initial_arrays, connection.flwr().ArrayRecord):
            fix = "Use ArrayRecord(model.state_dict())."
            raise Invalid(f"`initial_arrays` must be an ArrayRecord, got {type(initial_arrays).__name__}. {fix}")
        if evaluate_fn is not None and not callable(evaluate_fn):
            raise Invalid(f"`evaluate_fn` must be a function of a round and an ArrayRecord, got {evaluate_fn!r}.")
        if timeout is not None:
            check_number("timeout", timeout, above=True)
        engine = self._engine | ({} if timeout is None else {"ttl": timeout})
        out = _recorded(self._settings.get("out")) if resume else None
        task = WeightsTask(
            arrays_of(initial_arrays),
            clients=self._clients or self._count(grid, out),
            config=train_config or {},
            evaluate=evaluate_fn,
            samples=self._samples,
            module_buffers=self._buffers,
        )
        settings: Any = {"evaluate_every": 10 if evaluate_fn else 0} | self._settings
        settings |= {} if num_rounds is None else {"rounds": num_rounds}
        with FlowerPool(task, self._method, grid=grid, **engine) as pool:
            if out:
                length = {name: settings.get(name) for name in ("rounds", "until")}
                run = resume_run(out, self._method, task, pool, **length)
            else:
                run = runs.begin(self._method, task, pool, **settings)
            self.run, task.round = run, lambda: run.server.round
            _go(run, ())
        return AsyncResult(array_record(task.arrays(run.x, run.module_buffers)), run)

    def _count(self, grid: Any, resumed: Path | None) -> int:
        """The number of clients: that of the resumed run, or of the nodes that are online."""
        link = connection.GridLink(grid, 1.0)
        recorded = read_spec(resumed).get("clients") if resumed else None
        return int(recorded or count_nodes(link, self._method.buffer))

    def stop(self) -> None:
        """Stop the run with a checkpoint; callable from any thread."""
        if self.run:
            self.run.stop()


def squares(moves: SquaredMoves) -> Any:
    """The sums of squared moves of a train function, for the reply of a ClientApp: `"squares": squares(moves)`.

    Args:
        moves: a `SquaredMoves` of the module, whose `add` was called after each optimizer step.
    """
    if not isinstance(moves, SquaredMoves):
        raise Invalid(f"`squares` needs the tg.SquaredMoves(model) of a train function, got {type(moves).__name__}.")
    return squares_record(moves)


@checked
def identify(app: Any) -> None:
    """Let a ClientApp of your own tell the server the `partition-id` of its node, which is the client's number.

    Methods with `weight_by`, `privacy` or `regions` need it, because it matters to them whose data a node has.

    Args:
        app: the ClientApp.
    """
    _check_app("app", app, "ClientApp")
    try:
        connection.answer(app, HANDSHAKE, lambda content, context: node_content(context, own_data=True))
    except ValueError as error:
        rule = "`identify` needs a ClientApp with @app.train(), which was not identified before"
        raise Invalid(f"{rule}, got one that refuses: {type_and_first_line(error)}.") from error


def _check_app(name: str, app: Any, kind: Literal["ServerApp", "ClientApp"]) -> None:
    if not isinstance(app, vars(connection.flwr())[kind]):
        raise Invalid(f"`{name}` must be a {kind} of Flower, got {type(app).__name__}.")


@checked
def simulate(server: Any, client: Any, *, nodes: int, cpus: int | None = None, cpus_per_node: float = 1.0) -> None:
    """Run a ServerApp and a ClientApp in Flower's simulation, in this process; Ctrl-C stops the run with a checkpoint.

    Ray is started for it, on loopback only, and stopped at the end; a cluster that is running is not joined.

    Args:
        server: a ServerApp.
        client: a ClientApp.
        nodes: number of simulated nodes.
        cpus: number of CPUs that Ray may use; None: those of this machine.
        cpus_per_node: CPUs that a job takes; as many jobs run at once as fit, up to the number of CPUs + 4.
    """
    check_integer("nodes", nodes)
    if cpus is not None:
        check_integer("cpus", cpus)
    check_number("cpus_per_node", cpus_per_node, above=True)
    if cpus_per_node > (most := cpus or os.cpu_count() or 1):
        raise Invalid(
            f"`cpus_per_node` must be at most the CPUs that Ray has, {most}, got {cpus_per_node:g}. Set `cpus`."
        )
    _check_app("server", server, "ServerApp")
    _check_app("client", client, "ClientApp")
    check_loopback(ray_module())
    options: dict[str, Any] = {"address": "local", "_node_ip_address": "127.0.0.1", "include_dashboard": False}
    options |= {"logging_level": "ERROR", "log_to_driver": False} | ({"num_cpus": cpus} if cpus else {})
    backend = {"init_args": options, "client_resources": {"num_cpus": cpus_per_node, "num_gpus": 0.0}}
    with stopping_on_interrupt():
        connection.run_simulation(server, client, nodes=nodes, backend=backend)
