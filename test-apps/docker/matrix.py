#!/usr/bin/python3
"""Goes through the options of `docker run`, `docker exec` and Docker's other commands with runc and with quark, side by side.

    test-apps/docker/with-docker.sh target/release/quark test-apps/docker/matrix.py [--write FILE] [--only TEXT]

Each case has one check. Where it does not hold with runc, nothing is decided. Where it does it must hold with quark too, or quark must refuse
the option in a line of its own, where the case says that it is meant to, or the case says what is missing. The exit code is 1 if anything else
is found. --write writes the table, doc/compatibility/docker.md; without it, runc is believed to do what the table says."""
import argparse
import concurrent.futures
import contextlib
import os
import re
import subprocess
import sys
import threading
import time

from cases import CASES

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "doc/compatibility/docker.md")
WORKS, REFUSED, DIFFERS, FAILS = "works", "refused", "not there", "**fails**"


class Run:
    """A case with one runtime. What cases call: docker, run, exec, ok and what follows from them."""

    numbers = iter(range(10**6))
    lock = threading.Lock()

    def __init__(self, runtime):
        self.runtime, self.containers, self.refusal = runtime, [], None
        self.work = os.environ["WORK"]

    def name(self):
        with Run.lock:
            return f"{self.runtime}-{next(Run.numbers)}"

    def docker(self, *words, input=None, timeout=40):
        """Its exit code and what it prints, both streams together."""
        done = subprocess.run(["docker", *words], input=input, stdin=subprocess.DEVNULL if input is None else None, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)
        return done.returncode, done.stdout.strip()

    def run(self, *options, script, net="none", image="quark-test"):
        """`docker run` of a shell script to its end: what it prints."""
        network = [] if net is None else ["--network", net]
        code, output = self.docker("run", "--rm", "--runtime", self.runtime, *network, *options, image, "sh", "-c", script)
        if code == 125:
            self.refuse(output)
        return output

    def start(self, *options, script="trap 'exit 3' TERM; while :; do sleep 0.1; done", net="none", image="quark-test"):
        """A container that goes on: its name."""
        name = self.name()
        self.containers.append(name)
        network = [] if net is None else ["--network", net]
        code, output = self.docker("run", "-d", "--name", name, "--runtime", self.runtime, *network, *options, image, "sh", "-c", script)
        if code:
            self.refuse(output)
        return name

    def started(self, *options, script, **how):
        """As `start`, when the script has said "up"."""
        name = self.start(*options, script=script, **how)
        self.soon(lambda: self.ask("logs", name), "up")
        return name

    @contextlib.contextmanager
    def network(self, *options):
        """A network of its own: its name. Its containers go before it."""
        net = self.name()
        self.ask("network", "create", *options, net)
        try:
            yield net
        finally:
            self.clean()
            self.docker("network", "rm", net)

    def refuse(self, output):
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("WARNING", "See '", "Run 'docker"))]
        self.refusal = lines[-1] if lines else output
        raise Refused(self.refusal)

    def ask(self, *words, **how):
        """`docker WORDS` that must succeed: what it prints."""
        code, output = self.docker(*words, **how)
        if code:
            raise Wrong(f"docker {' '.join(words)}: {output}")
        return output

    def soon(self, what, expected, seconds=10):
        """Within some seconds `what()` is that."""
        end = time.monotonic() + seconds
        while True:
            got = what()
            if got == expected:
                return got
            if time.monotonic() > end:
                raise Wrong(f"{got!r}, not {expected!r}")
            time.sleep(0.1)

    def inspect(self, container, what):
        return self.ask("inspect", "-f", "{{" + what + "}}", container)

    def clean(self):
        if self.containers:
            self.docker("rm", "-f", *self.containers)
        self.containers.clear()


class Wrong(Exception):
    """A check does not hold."""


class Refused(Exception):
    """Docker or the runtime refuses to make the container."""


def reason(text):
    """The runtime's own words in what Docker prints."""
    text = re.sub(r"\s+", " ", text)
    for mark in ("OCI runtime create failed: ", "failed to create task for container: ", "failed to create shim task: ", "Error response from daemon: "):
        text = text.split(mark)[-1]
    # Of a name that each run makes, nothing is to be seen in the table.
    text = re.sub(r"\b[0-9a-f]{64}\b", "ID", text.removesuffix(": unknown.").removesuffix(": unknown"))
    text = re.sub(r"\S*/config\.json: ", "", text)
    return text.replace("|", "\\|").strip()


def judge(case, runtime):
    """What comes of a case: a word for the table, and what is wrong."""
    run = Run(runtime)
    try:
        got = case.check(run)
        if case.expected is not None and not re.fullmatch(case.expected, got or "", re.DOTALL):
            raise Wrong(f"prints {got!r}, not {case.expected!r}")
        return WORKS, ""
    except Refused as error:
        return REFUSED, reason(str(error))
    except (Wrong, subprocess.TimeoutExpired) as error:
        return (DIFFERS, case.missing) if case.missing and runtime == "quark" else (FAILS, str(error))
    finally:
        run.clean()


def table(results):
    lines = ["# Docker's options", "",
             "Written by `make docker-table`, which tries each option with a real daemon (Docker 20.10) and both runtimes, and checks what it is for.",
             "`make test` tries those of quark again.",
             "\"refused\" is an error of one line when the container is made; runc's own refusals come from what this host lacks.", ""]
    works = sum(quark[0] == WORKS for _, _, quark in results)
    lines += [f"{len(results)} cases: runc {sum(runc[0] == WORKS for _, runc, _ in results)} work, quark {works}.", ""]
    group = None
    for case, runc, quark in results:
        if case.group != group:
            group = case.group
            lines += ["", f"## {group}", "", "| option | what is tried | runc | quark |", "|---|---|---|---|"]
        said = f": {quark[1]}" if quark[0] in (REFUSED, DIFFERS) else ""
        lines.append(f"| `{case.option}` | {case.what} | {runc[0]} | {quark[0]}{said} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def words_of_table():
    """What the table says: case to the words of runc and of quark."""
    with open(TABLE) as f:
        rows = [line.strip().strip("|").strip().split(" | ", 3) for line in f if line.startswith("| `")]
    return {(option.strip("`"), what): (runc, quark.split(":")[0]) for option, what, runc, quark in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", help="try runc too, and write the table")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose option or description has this")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in f"{case.option} {case.what}"]
    table_says = {} if options.write else words_of_table()

    def both(case):
        quark = judge(case, "quark")
        runc = table_says.get((case.option, case.what), (None, None))
        # Hosts differ: where quark does not do what it did elsewhere, runc may not either.
        is_as_before = runc == (WORKS, quark[0])
        return case, (WORKS, "") if is_as_before else judge(case, "runc"), quark

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(both, cases))
    bad = 0
    for case, runc, quark in results:
        said = f"{case.option}: {case.what}: {quark[0]} {quark[1]}".strip()
        meant = {REFUSED: case.refused, DIFFERS: True, WORKS: not case.refused and not case.missing, FAILS: False}
        if runc[0] != WORKS:
            print(f"ok - {said} (not decided: with runc {runc[0]} {runc[1]})")
        elif meant[quark[0]]:
            print(f"ok - {said}")
        else:
            bad += 1
            print(f"not ok - {said}" + ("; it did not once" if case.refused or case.missing else ""))
    if options.write:
        os.makedirs(os.path.dirname(options.write), exist_ok=True)
        with open(options.write, "w") as f:
            f.write(table(results))
    elif not options.only and set(table_says) != {(case.option, case.what) for case in CASES}:
        bad += 1
        print(f"not ok - {TABLE} has other cases; write it anew")
    print(f"{len(results)} cases, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
