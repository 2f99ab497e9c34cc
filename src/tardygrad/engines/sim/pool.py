"""The simulator: an engine with a virtual clock and a calendar of arrivals."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice

from tardygrad.constructors import constructor
from tardygrad.core.hierarchy import serve
from tardygrad.core.messages import NOTHING, Asleep, Job, Lost, Message, Update
from tardygrad.core.method import Method, check_method
from tardygrad.core.task import Task, check_task
from tardygrad.engines.attendance import DROPS, LOST, SLEEP, Entry
from tardygrad.engines.contract import Pending, Pool, perform, perform_together
from tardygrad.engines.fleet_clock import CHANGES, corrupt, matched, round_trips
from tardygrad.engines.processes import process_count
from tardygrad.engines.sim.process_pool import ProcessPool
from tardygrad.errors import FIX_CHECKPOINT, Invalid, RecordError, TimeUp, WorkFailed, check_integer
from tardygrad.fleet import Fleet
from tardygrad.tasks.clock import Clock

RESULTS_PER_PROCESS = 8  # that may wait in memory until they are due
WINDOW = 1000  # rounds that a job may be in flight to be computed before it is due


class SimPool(Pool):
    """Jobs on a virtual clock. Arrivals are totally ordered by (time, client, serial). A job is computed when its
    update is due; jobs that no round needs are never computed. Each run begins at time 0.

    Args:
        task: the learning problem; it has as many clients as the fleet.
        method: the method to run.
        fleet: the clients' runtimes and failures.
        workers: processes that compute jobs before they are due, one torch thread each, with the same bits; 1 computes
            here and only what arrives, 0 is one process for every core.
        batch: number of jobs computed together, earliest due first, if the task implements `gradients`; faster for
            small models and batches. Results differ by rounding. Needs workers=1.
        rounds: T, if known: jobs that no round up to T needs are then not computed ahead.
    """

    task: Task
    method: Method
    fleet: Fleet
    deadline: float = math.inf
    now = 0.0
    virtual_clock = True

    @constructor
    def __init__(
        self,
        task: Task,
        method: Method,
        fleet: Fleet,
        *,
        workers: int = 1,
        batch: int = 1,
        rounds: int | None = None,
    ) -> None:
        workers = process_count("workers", workers)
        check_integer("batch", batch)
        check_method(method)
        check_task(task)
        fleet = matched(fleet, task)
        self.task, self.method, self.fleet = task, method, fleet
        self._prefetcher: Prefetcher | None = None
        self._batcher: Batcher | None = None
        self._total_rounds = rounds
        self.begin()
        self._corrupted, self._duplicated = fleet.sending("nan"), fleet.sending("twice")
        self.parallel = max(workers, batch)
        if batch > 1 and workers > 1:
            raise Invalid(f"`batch` above 1 needs workers=1, got batch={batch} with workers={workers}.")
        if workers > 1:
            self._prefetcher = Prefetcher(task, method, workers)
        if batch > 1:
            self._batcher = Batcher(task, method, batch)

    def begin(self) -> None:
        """Prepare for a run, and forget the run before."""
        self.now = 0.0
        self._round_trips = round_trips(self.task, self.method, self.fleet)
        self._attendance = self._round_trips.attendance
        calendar = self._attendance.calendar()
        self.due: list[tuple[float, int, int, Job | None]] = [(*entry, None) for entry in calendar]  # a heap
        self.asleep = self._attendance.asleep()
        self._repeats: dict[tuple[int, int], Update] = {}  # delivered once, and to be delivered again
        self._nights = 0  # entries about sleep since anything else happened
        self._rounds = self._total_rounds  # for the look-ahead; None once there is one
        if ahead := self._prefetcher or self._batcher:
            ahead.clear()

    def submit(self, job: Job) -> None:
        if self._rounds is not None:
            self._look_ahead(job.seed)
        self._attendance.submitted()
        client, serial = job.client, job.serial
        due = self._round_trips.due(client, serial, job.seed, job.steps or job.epochs, self.now)
        if (drops_at := self._round_trips.drops_at(job, self.now, due)) is not None:
            heappush(self.due, (drops_at, client, DROPS, None))
        elif due < math.inf:
            heappush(self.due, (due, client, serial, job))
            if self._duplicated and (client, serial) in self._duplicated:
                heappush(self.due, (due, client, serial, job))
            if self._prefetcher:
                self._prefetcher.add(due, job)
        elif self._round_trips.loses_client(client, self.now):  # such as by a heavy-tailed runtime that is infinite
            heappush(self.due, (self.now, client, LOST, None))

    def next(self) -> Message | None:
        while self.due and not self._attendance.is_over(self.due):
            self._nights = self._nights + 1 if self.due[0][2] in SLEEP else 0
            if self._nights > max(CHANGES, 4 * len(self._attendance.available)):
                self._skip_nights()
            time, client, serial, job = self.due[0]
            now = max(time, self.now) + (0.0 if job is None else self.fleet.server_time)
            if now > self.deadline:
                raise TimeUp(f"the next message comes after {self.deadline:g} s.")
            heappop(self.due)
            if job is None and (message := self._client_event((time, client, serial))) is None:
                continue
            self.now = now
            if job is None:
                return message
            return self._faulty(job) if self._corrupted or self._duplicated else self._result(job)
        return None

    def _skip_nights(self) -> None:
        """Skip sleep to shortly before anything else happens, or the deadline: a job may take millions of nights."""
        until = min((time for time, _, code, _ in self.due if code not in SLEEP), default=math.inf)
        if (until := min(until, self.deadline)) < math.inf:
            skipped = self._attendance.skipped
            self.due = [(*skipped(entry[:3], until), None) if entry[2] in SLEEP else entry for entry in self.due]
            heapify(self.due)
        self._nights = 0

    def _client_event(self, entry: Entry) -> Message | None:
        """The message of an entry of the calendar that is no job's; None if it has none."""
        for following in self._attendance.following(entry):
            heappush(self.due, (*following, None))
        if self._attendance.is_silent(entry):
            return None
        message = self._attendance.message(entry)
        time, client, _ = entry
        if isinstance(message, Asleep) and any(e[1] == client and e[3] and e[0] <= time for e in self.due):
            return message._replace(job="finish")  # its update arrives just now
        if isinstance(message, Lost) or (isinstance(message, Asleep) and message.job == "cancel"):
            self._drop_job(client)
        return message

    def _drop_job(self, client: int) -> None:
        """Forget the job of a client that is lost, or asleep and cancels it."""
        self.due = [e for e in self.due if e[1] != client or (e[3] is None and e[2] != DROPS)]
        heapify(self.due)
        self._repeats = {job_id: update for job_id, update in self._repeats.items() if job_id[0] != client}
        if ahead := self._prefetcher or self._batcher:
            ahead.drop(client)

    def _look_ahead(self, seed: int) -> None:
        """Prepare to compute ahead what a run of a known length needs, once."""
        if self._rounds is not None and (ahead := self._prefetcher or self._batcher):
            ahead.lookahead = Lookahead(self.task, self.method, self.fleet, self._rounds, seed)
        self._rounds = None

    def _result(self, job: Job) -> Update:
        if self._batcher:
            return self._batcher.result(job, self._calendar(job))
        return self._prefetcher.result(job) if self._prefetcher else perform(job, self.task, self.method)

    def _faulty(self, job: Job) -> Update:
        """The result of a job, with the fleet's faults applied."""
        job_id = (job.client, job.serial)
        if job_id in self._repeats:
            return self._repeats.pop(job_id)
        update = corrupt(self._result(job)) if job_id in self._corrupted else self._result(job)
        if job_id in self._duplicated:
            self._repeats[job_id] = update
        return update

    def _calendar(self, job: Job) -> list[tuple[float, int, int, Job | None]]:
        """The calendar without second deliveries: they must not change a batch, which decides the last bits."""
        if not self._duplicated:
            return self.due
        entries = (entry for entry in self.due if entry[3] is not job and entry[1:3] not in self._repeats)
        return list({entry[:3]: entry for entry in entries}.values())

    def pending(self) -> Pending:
        jobs = list({(job.client, job.serial): job for *_, job in self.due if job is not None}.values())
        due = [(time, client, serial) for time, client, serial, _ in self.due]
        done = self._batcher.done.values() if self._batcher else ()
        return Pending(self.now, jobs, due, (*done, *self._repeats.values()))

    def restore(self, pending: Pending) -> None:
        self.now, self.asleep = pending.now, ()
        calendar = self._attendance.resumed(list(pending.due), self.now)
        jobs = {(job.client, job.serial): job for job in pending.jobs}
        self.due = [(time, client, serial, jobs.get((client, serial))) for time, client, serial in calendar]
        if any(not (job or self._attendance.knows(client, code)) for _, client, code, job in self.due):
            raise RecordError(
                f"every entry of the checkpoint's `due` must have a job or a known code. {FIX_CHECKPOINT}"
            )
        heapify(self.due)
        done = {(update.client, update.serial): update for update in pending.done}
        deliveries = Counter((client, serial) for _, client, serial in pending.due)
        second = {job_id for job_id in self._duplicated if deliveries[job_id] == 1}
        self._repeats = {job_id: update for job_id, update in done.items() if job_id in second}
        if self._batcher and pending.jobs:  # the batches must be the same, and so must the look-ahead from round 0
            self._look_ahead(pending.jobs[0].seed)
        self._rounds = None
        if self._batcher:
            self._batcher.done = {job_id: update for job_id, update in done.items() if job_id not in self._repeats}
        for time, client, serial in dict.fromkeys(pending.due):
            job = jobs.get((client, serial))
            if self._prefetcher and job is not None and (client, serial) not in self._repeats:
                self._prefetcher.add(time, job)

    def close(self) -> None:
        if self._prefetcher:
            self._prefetcher.processes.close()


class Prefetcher:
    """Computes jobs in a pool of processes before they are due, in the order in which they are due."""

    def __init__(self, task: Task, method: Method, workers: int) -> None:
        self.processes = ProcessPool(task, method, workers)
        self.clear()

    def clear(self) -> None:
        """Forget all jobs; waits for those that are being computed."""
        while self.processes.assigned:
            self.processes.collect()
        self.todo: list[tuple[float, int, int, Job]] = []
        self.done: dict[tuple[int, int], Update | WorkFailed] = {}
        self.scheduled: set[tuple[int, int]] = set()  # jobs in `todo`, in a process or in `done`
        self.lookahead: Lookahead | None = None  # None: every job may be needed

    def add(self, due: float, job: Job) -> None:
        """Add a job, and start it if a process is free."""
        if self.lookahead is None or self.lookahead.arrives(job):
            self.scheduled.add((job.client, job.serial))
            heappush(self.todo, (due, job.client, job.serial, job))
        self._feed()

    def result(self, job: Job) -> Update:
        """The result of a job that is due now."""
        job_id = (job.client, job.serial)
        if job_id not in self.scheduled:
            if self.lookahead and self.lookahead.is_over:  # an update was refused: it is no longer right
                self.lookahead = None
            self.scheduled.add(job_id)
            self.processes.give(job)
        while job_id not in self.done:
            if self.todo and self.todo[0][1:3] == job_id:
                self.processes.give(heappop(self.todo)[-1])
            for finished, answer in self.processes.collect():
                if (finished.client, finished.serial) in self.scheduled:
                    self.done[finished.client, finished.serial] = answer
            self._feed()
        answer = self.done.pop(job_id)
        self.scheduled.remove(job_id)
        if isinstance(answer, WorkFailed):  # not raised earlier: a job whose update never arrives must not fail the run
            raise answer
        self._feed()
        return answer

    def drop(self, client: int) -> None:
        """Forget the job of a lost client."""
        self.todo = [entry for entry in self.todo if entry[1] != client]
        heapify(self.todo)
        self.scheduled = {job_id for job_id in self.scheduled if job_id[0] != client}
        self.done = {job_id: update for job_id, update in self.done.items() if job_id in self.scheduled}

    def _feed(self) -> None:
        """Keep two jobs assigned to every process, and at most `RESULTS_PER_PROCESS` results of each in memory."""
        pool, count = self.processes, len(self.processes.jobs)
        while self.todo and pool.assigned < 2 * count and pool.assigned + len(self.done) < RESULTS_PER_PROCESS * count:
            pool.give(heappop(self.todo)[-1])


class Batcher:
    """Computes the job that is due together with those due next."""

    def __init__(self, task: Task, method: Method, batch: int) -> None:
        self.task, self.method, self.batch = task, method, batch
        self.task.gradients([])  # raises `Invalid` if the task cannot
        self.clear()

    def clear(self) -> None:
        """Forget all jobs."""
        self.done: dict[tuple[int, int], Update] = {}
        self.lookahead: Lookahead | None = None  # None: every job may be needed

    def result(self, job: Job, due: list[tuple[float, int, int, Job | None]]) -> Update:
        """The result of a job that is due now, given the calendar of those due later."""
        if (job.client, job.serial) not in self.done:
            entries = nsmallest(self.batch + len(self.done), due)
            later = (other for *_, other in entries if other and self._wanted(other))
            group = [job, *islice(later, self.batch - 1)]
            for update in perform_together(group, self.task, self.method):
                self.done[update.client, update.serial] = update
        return self.done.pop((job.client, job.serial))

    def drop(self, client: int) -> None:
        """Forget the job of a lost client."""
        self.done = {job_id: update for job_id, update in self.done.items() if job_id[0] != client}

    def _wanted(self, job: Job) -> bool:
        """Whether a job must still be computed."""
        if (job.client, job.serial) in self.done:
            return False
        return self.lookahead is None or self.lookahead.arrives(job)


class Lookahead:
    """Says which jobs of a run arrive if nothing is refused, by a run without training that is a little ahead of it.

    Not by `drive`, which imports the engines and raises an error if the run starves.
    """

    def __init__(self, task: Task, method: Method, fleet: Fleet, rounds: int, seed: int) -> None:
        clock: Task = Clock(task.clients, task.parameters)
        self._server = serve(method, NOTHING, clients=task.clients, seed=seed, samples=[1] * task.clients)
        self._pool, self._rounds = SimPool(clock, method, fleet), rounds
        self.is_over = False  # whether it knows the whole run
        self._known: defaultdict[int, dict[int, tuple[int, float]]] = defaultdict(dict)  # rounds when sent and arrived
        self._submit(self._server.dispatch(self._pool.asleep))

    def arrives(self, job: Job) -> bool:
        """Whether a job arrives before the run's end, at most `WINDOW` rounds after it was sent."""
        jobs = self._known[job.client]
        for serial in [serial for serial in jobs if serial < job.serial]:
            del jobs[serial]
        sent, arrived = jobs.get(job.serial, (self._rounds, math.inf))
        while arrived == math.inf and self._server.round < sent + WINDOW and self._advance():
            sent, arrived = jobs.get(job.serial, (self._rounds, math.inf))
        return arrived < sent + WINDOW

    def _advance(self) -> bool:
        """Handle the next message; False at the end of the run."""
        message = self._pool.next() if self._server.round < self._rounds else None
        if message is None:
            self.is_over = True
            return False
        if isinstance(message, Update):
            jobs = self._known[message.client]
            sent, arrived = jobs.get(message.serial, (0, 0))
            if arrived == math.inf:  # else it is delivered for the second time
                jobs[message.serial] = sent, self._server.round
        self._submit(self._server.receive(message, self._pool.now).jobs)
        return True

    def _submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._known[job.client][job.serial] = self._server.round, math.inf
            self._pool.submit(job)
