#!/usr/bin/python3
"""Many sleepers that are all woken at once, with and without --wake-concurrency, in one run. Python functions are made
for each kind, sleep twice (so that a wake reads a working set), and each is sent a request in the same moment. Kinds take
turns; prints the median and the 99th percentile of the time to the answer, of all rounds together."""
import argparse
import os
import threading
import time

from demo import FUNCTION, command
from harness import http, runtimes


def start(runtime, count):
    containers = []
    for number in range(count):
        port = http.free_port()
        container = runtime.start(f"wake{number}", "python", command(port, 0), FUNCTION)
        container.cold_s(port)
        containers.append((container, port))
    return containers


def all_sleep(containers):
    for container, _ in containers:
        while container.state().get("hibernation") != "Hibernated":
            container.kill("STOP")


def all_wake(containers):
    """Seconds to the answer of each."""
    seconds, lock = [], threading.Lock()
    barrier = threading.Barrier(len(containers))

    def one(port):
        barrier.wait()
        took = http.request_s(port)
        with lock:
            seconds.append(took)
    threads = [threading.Thread(target=one, args=(port,)) for _, port in containers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def percentile(seconds, part):
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * part))] * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quark", default=os.path.join(runtimes.ROOT, "target", "release", "quark"))
    parser.add_argument("--containers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--places", type=int, nargs="*", default=[0, os.cpu_count()], help="0 is no limit")
    options = parser.parse_args()
    kinds, times = {}, {places: [] for places in options.places}
    try:
        for places in options.places:
            runtime = runtimes.Runtime(f"quark-{places}", options.quark, [f"--wake-concurrency={places}"], "make build")
            kinds[places] = start(runtime, options.containers)
        # The first wake is by page faults: it makes the working set.
        for number in range(options.rounds + 1):
            for places, containers in kinds.items():
                all_sleep(containers)
                time.sleep(1)
                seconds = all_wake(containers)
                if number > 0:
                    times[places] += seconds
    finally:
        for containers in kinds.values():
            for container, _ in containers:
                container.__exit__()
        runtimes.remove_cgroups()
    for places, seconds in times.items():
        print(f"--wake-concurrency={places}: {len(seconds)} wakes, {options.containers} at once: "
              f"p50 {percentile(seconds, .5):.0f} ms, p99 {percentile(seconds, .99):.0f} ms, "
              f"worst {max(seconds) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
