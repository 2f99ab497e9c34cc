"""Child processes: their answers, their ends, and what is left of them."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest

from tardygrad.engines.processes import Children, Ended


def echo(pipe: Any, *shared: Any) -> None:
    while True:
        message = pipe.recv()
        if message == "die":
            os._exit(7)
        pipe.send((message, os.environ.get("TARDYGRAD_TEST"), *shared))


@pytest.mark.parametrize("fresh", [False, True])
def test_a_child_answers_and_its_end_is_noticed(fresh: bool) -> None:
    secret = object()  # what cannot be pickled reaches a forked child
    with Children() as children:
        both = [
            children.start_fresh(echo, {"TARDYGRAD_TEST": str(i)}) if fresh else children.start(echo, i)
            for i in range(2)
        ]
        other = children.start(lambda pipe, value: pipe.send(value is not None), secret)
        assert dict(children.answers(of=[other])) == {other: True}
        for child in both:
            child.send("hello")
        answers = dict(children.answers(of=both[:1])) | dict(children.answers(of=both[1:]))
        assert [answers[child][1:] for child in both] == ([("0",), ("1",)] if fresh else [(None, 0), (None, 1)])
        assert children.answers(0.0) in ([], [(other, Ended(0))])
        both[0].send("die")
        assert children.answers(of=both[:1]) == [(both[0], Ended(7))]
        both[0].send("nobody is there")
        assert both[0] not in children.alive
        assert both[1] in children.alive
    assert not any(psutil.pid_exists(child.process.pid) for child in both)
