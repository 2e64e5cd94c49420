"""Requests a second of three servers under the load programs of their own projects, and of wrk. All containers are up at once; a round
takes each load through each runtime, in an order that turns, so that a noisy minute hits all alike."""
import contextlib
import json
import re
import subprocess

import catalog
import place
from harness import runtimes

SECONDS = 4
CLIENTS = 16


def chrooted(*arguments):
    """A load program of the same root file system, on the host."""
    done = subprocess.run(["chroot", catalog.ROOTFS, *arguments], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise runtimes.Failed(f"{' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def redis(*arguments):
    def load(address):
        out = chrooted("redis-benchmark", "-h", address, "--csv", "-c", str(CLIENTS), *arguments)
        return float(out.splitlines()[-1].split(",")[1].strip('"'))
    return load


def wrk(address):
    out = chrooted("wrk", "-t", "1", "-c", str(CLIENTS), "-d", f"{SECONDS}s", f"http://{address}{catalog.static_path(0)}")
    if "Non-2xx" in out or "Socket errors" in out:
        raise runtimes.Failed(f"wrk: {out.strip()[-300:]}")
    return float(re.search(r"Requests/sec:\s*([0-9.]+)", out)[1])


def pgbench(*arguments):
    def load(address):
        out = chrooted("/usr/lib/postgresql/15/bin/pgbench", "-h", address, "-U", "postgres", "-n", "-c", "4", "-T", str(SECONDS), *arguments,
                       "postgres")
        return float(re.search(r"tps = ([0-9.]+)", out)[1])
    return load


LOADS = [
    ("redis SET", "redis", redis("-t", "set", "-n", "60000")),
    ("redis GET", "redis", redis("-t", "get", "-n", "60000")),
    ("redis GET, 16 at once in a connection", "redis", redis("-t", "get", "-n", "400000", "-P", "16")),
    ("nginx, 1 KiB file, keep-alive", "nginx", wrk),
    ("PostgreSQL, pgbench -S", "postgresql", pgbench("-S")),
    ("PostgreSQL, pgbench TPC-B", "postgresql", pgbench()),
]


def counts(runtime, container):
    """What quark counted so far."""
    out = runtime.call("events", "--stats", container.id).stdout
    return json.loads(out)["data"]["quark"]["counts"]


def measure(all_of_them, rounds, say):
    """{load: {runtime: [a second]}}."""
    found = {}
    servers = {s.name: s for s in catalog.ALL}
    for kind in ("redis", "nginx", "postgresql"):
        with contextlib.ExitStack() as stack:
            running = []
            for runtime in all_of_them:
                try:
                    where = stack.enter_context(place.Place(runtime, servers[kind]))
                    container = stack.enter_context(where.start())
                    client = servers[kind].made_client(where.address)
                    place.ready_s(container, client)
                    client.close()
                    if kind == "postgresql":
                        chrooted("/usr/lib/postgresql/15/bin/pgbench", "-h", where.address, "-U", "postgres", "-i", "-q", "-s", "5", "postgres")
                    running.append((runtime, where.address))
                except runtimes.Failed as error:
                    say(f"{kind} on {runtime.name}: FAILED: {error}")
            for n in range(rounds):
                for name, server, load in LOADS:
                    if server != kind:
                        continue
                    turned = running[n % len(running):] + running[:n % len(running)]
                    for runtime, address in turned:
                        rate = load(address)
                        found.setdefault(name, {}).setdefault(runtime.name, []).append(rate)
                        say(f"round {n + 1}, {name}, {runtime.name}: {rate:,.0f}/s")
    return found
