"""Who works for a pool on Ray, without Ray: actors that answer when they are told to."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

import tardygrad as tg
from tardygrad.engines.ray.places import Places
from tardygrad.engines.ray.worker import Alive
from tardygrad.engines.ray.workers import Workers


class RayError(Exception):
    pass


class NoRay:
    """As much of Ray as a workers knows: a ping is its own answer, and an answer that is an error is raised."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        self.actors: list[Any] = []
        self.ended: list[Any] = []
        self.load_error = ""

    def hire(self, place: str | None = None) -> Any:
        name = len(self.actors)
        self.actors.append(
            SimpleNamespace(**{each: SimpleNamespace(remote=lambda: name) for each in ("ping", "begun")})
        )
        return self.actors[-1]

    def get(self, answer: Any) -> Any:
        if self.actors[answer] in self.ended:
            raise RayError("it is dead.")
        return Alive(answer, "here", self.load_error)

    def is_initialized(self) -> bool:
        return True

    def kill(self, actor: Any) -> None:
        self.ended.append(actor)


@pytest.fixture
def ray() -> NoRay:
    return NoRay()


@pytest.fixture
def workers(ray: NoRay) -> Workers:
    """Three workers, all free."""
    made = Workers(ray, ray.hire, lambda wanted: Counter({None: wanted}), 3)
    for _ in range(3):
        made.add(None)
    for answer in list(made.starting):
        made.answered(answer)
    return made


def test_workers_are_taken_in_turn_unless_one_is_asked_for(workers: Workers) -> None:
    first, second, third = workers.free
    assert workers.take(third, None) is third
    assert workers.take(third, None) is first
    assert workers.take(None, None) is second
    assert not workers.free
    workers.release(third)
    assert list(workers.free) == [third]


def test_a_task_that_no_worker_can_load_ends_the_run(ray: NoRay, workers: Workers) -> None:
    def die() -> None:
        answer = list(workers.starting)[-1]
        ray.ended.append(ray.actors[answer])
        workers.answered(answer)

    workers.add(None)
    for _ in range(5):
        die()
    with pytest.raises(
        tg.WorkFailed, match=r"6 workers in a row ended while they loaded the task: RayError: it is dead"
    ):
        die()
    ray.load_error = "ValueError: first\nsecond"
    workers.add(None)
    with pytest.raises(tg.WorkFailed, match=r"a worker could not load the task: ValueError: first\nsecond\."):
        workers.answered(list(workers.starting)[-1])


def test_a_worker_that_dies_in_its_start_is_replaced(ray: NoRay, workers: Workers) -> None:
    workers.add(None)
    (answer,) = workers.starting
    ray.ended.append(ray.actors[answer])
    workers.answered(answer)
    assert list(workers.starting) == [answer + 1]
    assert len(workers.members) == 4


def test_a_worker_that_could_not_start_ends_the_run(ray: NoRay, workers: Workers) -> None:
    error = RayError("The actor died.\nValueError: no such file.")
    error.actor_init_failed = True  # type: ignore[attr-defined]
    workers.add(None)
    (answer,) = workers.starting
    ray.get = lambda _: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    with pytest.raises(tg.WorkFailed, match=r"could not start: ValueError: no such file\.$"):
        workers.answered(answer)


def test_of_those_too_many_the_coming_go_first_then_the_free_and_the_busy_after_their_job(
    ray: NoRay, workers: Workers
) -> None:
    busy = [workers.take(None, None), workers.take(None, None)]
    (free,) = workers.free
    workers.add(None)
    (coming,) = workers.starting
    workers.resize(3, busy)
    assert ray.ended == [ray.actors[coming]]
    assert not workers.starting
    workers.resize(1, busy)
    assert ray.ended == [ray.actors[coming], free.actor]
    assert [one.leaving for one in busy] == [False, True]
    for worker in busy:
        workers.release(worker)
    assert workers.members == list(workers.free) == busy[:1]
    assert len(ray.ended) == 3


def test_a_leaving_worker_stays_if_it_is_wanted_again(ray: NoRay, workers: Workers) -> None:
    busy = [workers.take(None, None) for _ in range(3)]
    workers.resize(1, busy)
    workers.resize(3, busy)
    for worker in busy:
        workers.release(worker)
    assert list(workers.free) == busy
    assert not ray.ended


def test_workers_of_a_place_do_the_jobs_there_and_are_replaced_there(ray: NoRay) -> None:
    task = tg.Task()
    task.clients = 4
    placed = Workers(ray, ray.hire, Places(task, {0: "a", 1: "b"}).spread, 1)
    for place in placed.shares.elements():
        placed.add(place)
    for answer in list(placed.starting):
        placed.answered(answer)
    assert placed.up == {"a": 1, "b": 1, None: 1}
    worker = placed.take(None, "b")
    assert worker is not None
    assert worker.label.startswith("b:")
    assert placed.take(None, "b") is None
    placed.replace(worker)
    assert placed.up["b"] == 0
    (coming,) = placed.starting.values()
    assert coming.place == "b"
    placed.resize(5, [])
    assert sorted(str(one.place) for one in placed.members) == ["None", "None", "None", "a", "b"]
    placed.resize(1, [])
    assert sorted(str(one.place) for one in placed.members) == ["None", "a", "b"]


def test_a_wrong_number_of_workers_is_refused_and_changes_nothing(workers: Workers) -> None:
    with pytest.raises(tg.Invalid, match="`workers` must be a whole number, 1 or more"):
        workers.resize(0, [])
    assert workers.wanted == len(workers.members) == 3
