#!/usr/bin/python3
"""Runs the functions of FunctionBench under Docker with quark, runc and runsc: cold, warm, hibernated, woken.

    make functionbench                                 # all; target/functionbench/report.json and report.md
    make functionbench ONLY="matmul hello-node"        # some of them
    make functionbench ROUNDS=5 RUNSC=/path/to/runsc WITHOUT=runsc

Each function is made from its description (FUNCTION.yaml) and started ROUNDS times with each runtime in turns. Answers are compared, with
those of the other runtimes and with those before each sleep. Needs root. Exit code 1: something failed, or an answer was wrong."""
import argparse
import json
import os
import shutil
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
OUT = os.path.join(ROOT, "target", "functionbench")
sys.path[:0] = [os.path.join(ROOT, "bench"), os.path.join(ROOT, "rootfs")]
import catalog  # noqa: E402
import description  # noqa: E402
import engine  # noqa: E402
import layers  # noqa: E402
import outputs  # noqa: E402
import report  # noqa: E402

WARM_UP, WARM, WARM_LIMIT_S = 3, 15, 5
SLEEPS = 3
# As test-apps/docker/with-docker.sh has the runtimes.
DOCKERS_NAME = {"runc": "runc", "runsc": "gvisor", "quark": "quark"}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Asked:
    """Requests to one container: all digests, and a look whether it is still the same one that answers."""

    def __init__(self, container, path):
        self.container, self.path, self.digests, self.served = container, path, [], 0

    def __call__(self, first=False):
        seconds, answer = (self.container.first if first else self.container.ask)(self.path)
        self.digests.append(answer["digest"])
        self.served += 1
        if answer["served"] != self.served:
            raise engine.Failed(f"the function has served {answer['served']} requests, not {self.served}: it is not the one that was asked before")
        return seconds


def warm(ask):
    """The median of some requests; slow functions get fewer."""
    for _ in range(WARM_UP):
        ask()
    times, end = [], time.perf_counter() + WARM_LIMIT_S
    while len(times) < WARM and (len(times) < 3 or time.perf_counter() < end):
        times.append(ask())
    return statistics.median(times)


def sleeps(container, ask, life):
    """Puts it to sleep some times; a request wakes it. The first wake knows no working set."""
    asleep, later, following = [], [], []
    for n in range(SLEEPS):
        container.sleep()
        asleep.append(container.held_bytes())
        time.sleep(0.05)
        if container.hibernation() != "Hibernated":
            raise engine.Failed("it woke before it was asked")
        seconds = ask()
        if n == 0:
            life["woken_first_s"] = seconds
        else:
            later.append(seconds)
        following.append(ask())
    life.update(asleep_bytes=statistics.median(asleep), woken_again_s=statistics.median(later), woken_next_s=statistics.median(following),
                woken_bytes=container.held_bytes())


def one_life(runtime, quark, image, described, case):
    """What was measured, with "failed" if it ended early."""
    life, ask = {}, None
    try:
        with engine.Container(DOCKERS_NAME[runtime], quark, image, described) as container:
            ask = Asked(container, case.query)
            life["cold_s"] = ask(first=True)
            life["warm_s"] = warm(ask)
            life["warm_bytes"] = container.held_bytes()
            if runtime == "quark":
                sleeps(container, ask, life)
    except Exception as error:  # noqa: BLE001: the next function is to be tried whatever this one throws
        life["failed"] = str(error) if isinstance(error, engine.Failed) else f"{type(error).__name__}: {error}"
    life["digests"] = ask.digests if ask else []
    return life


def measure(options, cases):
    """In the place that with-docker.sh made: the result."""
    result = {"rounds": options.rounds, "versions": {}, "not_built": {}, "functions": {}}
    binaries = {"runc": "runc", "runsc": os.environ.get("GVISOR"), "quark": options.quark}
    runtimes = [n for n in report.RUNTIMES if binaries[n] and n not in options.without.split()]
    for name in runtimes:
        result["versions"][name] = engine.command(binaries[name], "--version").splitlines()[0]
    engine.make_network()
    for case in cases:
        try:
            described = description.load(case.description)
            image = outputs.make_docker(described)
        except (description.Wrong, OSError) as error:
            result["not_built"][case.name] = str(error)
            say(f"{case.name}: {error}")
            continue
        lives = result["functions"].setdefault(case.name, {n: [] for n in runtimes})
        for _ in range(options.rounds):
            for name in runtimes:
                life = one_life(name, options.quark, image, described, case)
                lives[name].append(life)
                say(f"{case.name} on {name}: {report.one_line(life)}")
    return result


def make_roots(cases):
    """Before, as there is no network inside: what cannot be made is said now, and is a failure then."""
    for path in sorted({case.description for case in cases}):
        try:
            layers.stack(description.load(path))
        except (description.Wrong, OSError) as error:
            say("\n".join([*getattr(error, "tail", []), f"{os.path.basename(path)}: {error}"]))


def write(result):
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, "report.json"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    text = report.markdown(result)
    with open(os.path.join(OUT, "report.md"), "w") as f:
        f.write(text)
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--quark", default=os.path.join(ROOT, "target/release/quark"))
    p.add_argument("--runsc", default=shutil.which("runsc"), help="gVisor's binary, if it is to be compared")
    p.add_argument("--only", default="", help="names of functions, with spaces between")
    p.add_argument("--without", default="", help="names of runtimes, with spaces between")
    p.add_argument("--rounds", type=int, default=3)
    options = p.parse_args()
    options.quark = os.path.abspath(options.quark)
    try:
        cases = catalog.chosen(options.only.split())
    except ValueError as error:
        sys.exit(f"--only: {error}")
    unknown = sorted(set(options.without.split()) - set(report.RUNTIMES))
    if unknown or options.rounds < 1:
        sys.exit(f"--without: there is no {', '.join(unknown)}" if unknown else "--rounds: at least 1")
    if "QUARK_DOCKER_TEST" not in os.environ:
        if os.geteuid() != 0:
            sys.exit("make functionbench needs root (root file systems, dockerd): run it with sudo")
        make_roots(cases)
        environment = dict(os.environ, LIMIT=os.environ.get("LIMIT", "7200"), PYTHONUNBUFFERED="1")
        if options.runsc and "runsc" not in options.without.split():
            environment["GVISOR"] = os.path.abspath(options.runsc)
        os.execve(os.path.join(ROOT, "test-apps/docker/with-docker.sh"), ["with-docker.sh", options.quark, sys.executable, *sys.argv], environment)
    result = measure(options, cases)
    print(write(result))
    failed = report.failures(result)
    if failed:
        sys.exit(f"failed: {len(failed)}, of {', '.join(dict.fromkeys(line.split(':')[0].split(' on ')[0] for line in failed))}")


if __name__ == "__main__":
    main()
