"""The messages of a Flower app. The only file that imports Flower."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from tardygrad.errors import Invalid, TardygradError, WorkFailed, type_and_first_line

LOST = {3: "its message has expired", 4: "its reply has expired", 5: "its node is gone", 8: "its ClientApp has crashed"}
"""Errors of Flower by their codes, after which only the job is lost."""

RAISED = 2
"""Flower's code for an error that the ClientApp raised."""

FAILED = {
    0: "an error that Flower does not know; in a simulation, an actor that has died fails all later jobs",
    1: "the ClientApp cannot be loaded",
    RAISED: "the ClientApp raised an error",
    6: "a mod of the ClientApp refused it",
    7: "the node does not trust the app",
}
"""Errors after which the run fails, because they would occur again; `RAISED` only until the node has sent an update."""


FIXES = {
    "No train function": "Write its train function with @app.train()",
    "fitins.parameters": "It has a client_fn, as in older versions of Flower: write a train function with @app.train()",
}
"""What to do about errors of a ClientApp, by a part of their text."""


@cache
def flwr() -> Any:
    """What this engine uses of Flower; raises `Invalid` if it is not installed.

    Flower reports its use to its makers unless this variable is 0. It reads the variable when it is imported, which may
    have been earlier, so its constant is set too.
    """
    enabled = os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp
        from flwr.supercore import telemetry
    except ImportError as error:
        raise Invalid("tardygrad.flower needs Flower. Use pip install -c constraints.txt -e '.[flower]'.") from error
    telemetry.FLWR_TELEMETRY_ENABLED = enabled
    return SimpleNamespace(
        Array=Array, ArrayRecord=ArrayRecord, ConfigRecord=ConfigRecord, MetricRecord=MetricRecord,
        Error=Error, Message=Message, RecordDict=RecordDict, ClientApp=ClientApp, ServerApp=ServerApp,
    )  # fmt: skip


def run_simulation(server: Any, client: Any, *, nodes: int, backend: dict[str, Any]) -> None:
    """Run a ServerApp and a ClientApp in Flower's simulation.

    Flower sets environment variables, such as PYTHONPATH for Ray's workers: they are restored at the end.
    """
    flwr()
    before = dict(os.environ)
    try:
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").addFilter(_concerns_user)
        run_simulation(server, requiring_replies(client), num_supernodes=nodes, backend_config=backend)
    finally:
        logging.getLogger("flwr").removeFilter(_concerns_user)
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _concerns_user(record: logging.LogRecord) -> bool:
    """Whether a line of Flower's log is for the user: not the warning about a deprecated function that we call."""
    return "`run_simulation` function is deprecated" not in record.getMessage()


def parent_has_ended() -> bool:
    """Whether the process of Flower that started this one is gone, such as after Ctrl-C on a SuperLink.

    Flower watches it too, but cannot interrupt the main thread of a simulation, which waits for its workers.
    """
    parent = sys.argv[sys.argv.index("--parent-pid") + 1] if "--parent-pid" in sys.argv[:-1] else ""
    try:
        os.kill(int(parent), 0)
    except ProcessLookupError:
        return True
    except (ValueError, PermissionError):  # it is not Flower's, or it runs as another user
        return False
    return False


class NodeReply(NamedTuple):
    """The answer to a message."""

    message_id: str  # of the message that it answers; an error may come from another node than the message went to
    content: Any = None  # a RecordDict, unless there is an error
    code: int | None = None  # of the error
    reason: str = ""

    @property
    def error(self) -> str:
        """What went wrong, in words."""
        text = (LOST | FAILED).get(-1 if self.code is None else self.code, f"Flower's error {self.code}")
        fix = next((f". {fix}" for part, fix in FIXES.items() if part in self.reason), "")
        return f"{text}: {_error_text(self.reason)}{fix}" if self.reason and self.code not in LOST else text


def _error_text(reason: str) -> str:
    """The type and message of the ClientApp's error, without what Flower and Ray add to it.

    >>> _error_text("<class 'builtins.KeyError'>:<'lr'>")
    'KeyError: lr'
    """
    kind, _, text = reason.removeprefix("<class '").removesuffix("'>").rpartition("'>:<'")
    _, wrapped, message = text.rpartition("Exception ClientAppException occurred. Message: ")
    words = message if wrapped or not kind else f"{kind.rpartition('.')[2]}: {text}"
    return " ".join(words.split())[:300].rstrip(".")


class GridLink:
    """The grid of a Flower app, whose errors become `WorkFailed`.

    Args:
        grid: the `Grid` that Flower passes to the ServerApp.
        ttl: seconds after which Flower drops a message without a reply.
    """

    def __init__(self, grid: Any, ttl: float) -> None:
        if grid is None or not all(callable(getattr(grid, name, None)) for name in ("push_messages", "pull_messages")):
            got = "none" if grid is None else repr(type(grid).__name__)
            fix = "Start the app with flwr run, and with resume=true to continue a run (docs/flower.md)."
            raise Invalid(f"a FlowerPool needs the grid of a running Flower app, got {got}. {fix}")
        self._grid, self._ttl = grid, ttl

    def nodes(self) -> set[int]:
        """The ids of the nodes that are online."""
        with _failures_reported("list its nodes"):
            return {int(node) for node in self._grid.get_node_ids()}

    def send(self, content: Any, node: int, kind: str, group: str = "") -> str | None:
        """Send a message to a node; returns its id, or None if the node is gone."""
        with _failures_reported("take a message"):
            message = flwr().Message(content, node, kind, ttl=self._ttl, group_id=group)
            sent = list(self._grid.push_messages([message]))
        return str(sent[0]) if sent and sent[0] else None

    def pull(self, message_ids: Iterable[str]) -> list[NodeReply]:
        """The replies to these messages that have arrived."""
        if not (ids := list(message_ids)):
            return []
        with _failures_reported("give its replies"):
            return [_reply(message) for message in self._grid.pull_messages(ids)]


def _reply(message: Any) -> NodeReply:
    message_id = str(message.metadata.reply_to_message_id)
    if message.has_error():
        return NodeReply(message_id, code=int(message.error.code), reason=message.error.reason or "")
    return NodeReply(message_id, message.content)


@contextmanager
def _failures_reported(what: str) -> Iterator[None]:
    try:
        yield
    except TardygradError:
        raise
    except Exception as error:
        raise WorkFailed(f"Flower's SuperLink could not {what}: {type_and_first_line(error)}.") from error


Handler = Callable[[Any, Any], Any]
"""Takes the content of a message and Flower's `Context`; returns the content of the reply."""


def client_app(handlers: dict[str, Handler], mods: list[Any]) -> Any:
    """A ClientApp that answers messages with these handlers, by the messages' types: "category.action"."""
    app = flwr().ClientApp(mods=mods)
    for kind, handler in handlers.items():
        answer(app, kind, handler)
    return app


def answer(app: Any, kind: str, handler: Handler) -> None:
    """Let a ClientApp answer messages of the type "category.action"."""
    category, action = kind.split(".")
    getattr(app, category)(action)(_as_flower_handler(handler))


def requiring_replies(app: Any) -> Any:
    """The same ClientApp, but a function that returns no Message raises an error: Flower would silently not reply.

    A query without a handler is answered with an error: Flower would log a traceback for each node.
    """
    flower = flwr()

    class RequiringReplies(flower.ClientApp):  # type: ignore[name-defined,misc]
        def __call__(self, message: Any, context: Any) -> Any:
            try:
                reply = app(message, context)
            except ValueError as error:
                if "No query function" not in str(error):
                    raise
                return flower.Message(flower.Error(RAISED, str(error)), reply_to=message)
            if not isinstance(reply, flower.Message):
                kind, got = message.metadata.message_type, type(reply).__name__
                fix = "End it with `return Message(content=content, reply_to=msg)`"
                raise TypeError(f"the {kind} function of a ClientApp must return a Message, got {got}. {fix}")
            return reply

    return RequiringReplies()


def _as_flower_handler(handler: Handler) -> Handler:
    def answer(message: Any, context: Any) -> Any:
        return flwr().Message(handler(message.content, context), reply_to=message)

    return answer
