"""How much does the simulator add to a bare event queue?

A million updates over 100,000 clients on the clock alone, against a loop that only draws the same runtimes from the
same streams and keeps them in `heapq`. Prints the ratio in each mode; memory per client for two fleet sizes; and
whether the cost of an update grows with the number of rounds. CPU seconds, since other work on the machine takes
wall-clock time from either side at random.

    python benchmarks/clock.py [--updates 1000000] [--clients 100000] [--buffer 100]
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from heapq import heapify, heappop, heappush
from itertools import pairwise
from statistics import median

import tardygrad as tg
from tardygrad import streams


def fleet(clients: int) -> tg.Fleet:
    return tg.Fleet.paper(clients=clients, stragglers="large", continuous=True)


def bare(clients: int, updates: int) -> float:
    """Seconds for the draws and the heap, and nothing else."""
    draws = [group.runtime.draw for group in fleet(clients).groups for _ in range(group.clients)]
    began = time.process_time()
    heap = [(draws[c](streams.uniform(0, "runtime", c, 0), 0), c, 0) for c in range(clients)]
    heapify(heap)
    for _ in range(updates):
        now, client, serial = heappop(heap)
        again = serial + 1
        heappush(heap, (now + draws[client](streams.uniform(0, "runtime", client, again), again), client, again))
    return time.process_time() - began


def method(mode: str, buffer: int) -> tg.Method:
    return tg.sgdclip(local_lr=0.1, local_clip=1.0, lr=1.0, buffer=buffer, local_steps=1, mode=mode)  # type: ignore[arg-type]


def simulated(clients: int, updates: int, mode: str, buffer: int) -> tuple[float, list[float]]:
    """Seconds for the whole run, and for each tenth of its updates."""
    task, how = tg.tasks.clock(clients=clients), method(mode, buffer)
    began = time.process_time()
    pool = tg.SimPool(task, how, fleet(clients))
    server = tg.Server(how, task.init(0), clients=clients, seed=0)
    marks = []
    tenth = updates // 10
    for number, _ in enumerate(tg.drive(server, pool, updates // buffer)):
        if number % tenth == 0:
            marks.append(time.process_time())
    return time.process_time() - began, [b - a for a, b in pairwise(marks)]


def memory(clients: int) -> float:
    """Kilobytes per client after two updates each."""
    tracemalloc.start()
    task, how = tg.tasks.clock(clients=clients), method("client", 10)
    pool = tg.SimPool(task, how, fleet(clients))
    server = tg.Server(how, task.init(0), clients=clients, seed=0)
    for _ in tg.drive(server, pool, clients * 2 // 10):
        pass
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / clients / 1000


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--updates", type=int, default=1_000_000)
    ask.add_argument("--clients", type=int, default=100_000)
    ask.add_argument("--buffer", type=int, default=100)
    ask.add_argument("--repeats", type=int, default=3)
    ask = ask.parse_args()
    print(f"{ask.updates:,} updates over {ask.clients:,} clients, M = {ask.buffer}; median of {ask.repeats} repeats")
    for mode in ("client", "server"):
        ratios, grown = [], []
        for _ in range(ask.repeats):  # in alternation, since the machine drifts
            reference = bare(ask.clients, ask.updates)
            seconds, tenths = simulated(ask.clients, ask.updates, mode, ask.buffer)
            ratios.append(seconds / reference)
            grown.append(median(tenths[-3:]) / median(tenths[:3]))
        per_update = seconds / ask.updates * 1e6
        print(f"{mode:7} {median(ratios):.2f}x the bare heapq loop ({per_update:.1f} µs per update in the last repeat)")
        print(f"{mode:7} last updates cost {median(grown):.2f}x the first ones")
    for clients in (ask.clients // 10, ask.clients):
        print(f"memory  {memory(clients):.2f} kB per client at {clients:,} clients")


if __name__ == "__main__":
    main()
