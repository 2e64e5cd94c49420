"""A server's life in one container: until it is ready, warm, and with quark asleep many times, woken by a request."""
import os
import random
import statistics
import time

import place
from harness import runtimes

# Programs that are compiled as they run need some.
WARM_UP, WARM = 300, 100


def timed(client):
    began = time.perf_counter()
    client.request()
    return (time.perf_counter() - began) * 1e3


def sleeps(container, client, count, found):
    """Puts it to sleep `count` times, and wakes it by a request each."""
    asleep, awake = [], []
    for n in range(count):
        container.kill("STOP")
        state = container.state().get("hibernation")
        if state != "Hibernated":
            raise runtimes.Failed(f"sleep {n + 1}: the state is {state}, not Hibernated")
        asleep.append(container.memory()["cgroup_bytes"])
        time.sleep(random.uniform(0, 0.05))
        if container.state().get("hibernation") != "Hibernated":
            raise runtimes.Failed(f"sleep {n + 1}: it woke before it was asked")
        found["first_answers_ms"].append(timed(client))
        # What is needed a little later comes back too.
        client.request()
        awake.append(container.memory()["cgroup_bytes"])
    found["asleep_bytes"], found["woken_bytes"] = statistics.median(asleep), statistics.median(awake)


def life(runtime, server, count):
    """One container's life; what was found, with "failed" if it ended early."""
    found = {"first_answers_ms": []}
    try:
        with place.Place(runtime, server) as where:
            client = server.made_client(where.address)
            client.key = os.path.join(where.root, "root/.ssh/id_ed25519")
            with where.start() as container:
                try:
                    found["ready_ms"] = place.ready_s(container, client) * 1e3
                    client.load()
                    for _ in range(WARM_UP):
                        client.request()
                    found["warm_request_ms"] = statistics.median(timed(client) for _ in range(WARM))
                    found["warm_bytes"] = container.memory()["cgroup_bytes"]
                    if runtime.name == "quark":
                        sleeps(container, client, count, found)
                except Exception as error:  # noqa: BLE001: the next server is to be tried whatever a driver throws
                    found["failed"] = f"{type(error).__name__}: {error}"
                    found["output"] = container.output()
                finally:
                    client.close()
    except runtimes.Failed as error:
        found["failed"] = str(error)
    return found
