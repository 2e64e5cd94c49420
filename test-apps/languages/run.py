#!/usr/bin/python3
"""Runs programs of many languages in containers of runc and of quark: jobs that have to print the same, services that are put to sleep.

    make languages                            # all; target/languages/report.json and report.md
    make languages ONLY="Go Java"             # some
    make languages PLATFORM=kvm SLEEPS=2      # on kvm, if need be in an emulated machine: without the long jobs, unless LONG=1

A service is asked for rows, hibernated 20 times and woken by a request each; every answer is looked at. Needs root. Exit code 1: a
job or a service failed, or a job prints something else in quark."""
import argparse
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "servers"))
import place  # noqa: E402

from harness import runtimes  # noqa: E402: place.py shows where it is

import languages  # noqa: E402
import life  # noqa: E402
import report as servers  # noqa: E402
import tables  # noqa: E402

TARGET = os.path.join(place.ROOT, "target", "languages")
JOB_LIMIT_S = 300 * runtimes.SLOWNESS


def say(text):
    print(text, file=sys.stderr, flush=True)


def made(chosen):
    """{name: root file system}, made where it is not there."""
    roots = {}
    for language in chosen:
        done = subprocess.run([os.path.join(place.ROOT, "rootfs/image.py"), "root", language.description()], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{language.name}: its image cannot be made")
        roots[language.name] = done.stdout.strip()
    return roots


def job(runtime, language, what, rootfs):
    """{"status", "output", "seconds"} of a job; a status of None is one that did not end."""
    server = language.server("job", ["/bin/sh", "-c", f"mkdir /var/tmp/job && cd /var/tmp/job && {what.command}"], rootfs)
    with place.Place(runtime, server) as where:
        container = where.start(begins=False)
        command = [w for w in container.command if w != "--detach"]
        began = time.perf_counter()
        status, out, errors = None, b"", b""
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=JOB_LIMIT_S)
            status, out, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            out, errors = late.stdout or b"", late.stderr or b""
        finally:
            seconds = time.perf_counter() - began
            container.__exit__()
    text = {"output": out.decode(errors="replace"), "errors": errors.decode(errors="replace")[-2000:]}
    return {"status": status, "seconds": seconds, **text}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--quark", default=os.path.join(place.ROOT, "target/release/quark"))
    p.add_argument("--platform", default="auto")
    p.add_argument("--only", default="", help="languages, with spaces between: the beginnings of their names")
    p.add_argument("--without", default="", help="names of runtimes, with spaces between")
    p.add_argument("--sleeps", type=int, default=20)
    p.add_argument("--short", action="store_true", help="leave out jobs that compile or install much")
    p.add_argument("--roots", action="store_true", help="only make the images")
    options = p.parse_args()
    chosen = [a for a in languages.ALL if not options.only or any(a.name.lower().startswith(n.lower()) for n in options.only.split())]
    if not chosen:
        sys.exit(f"--only: there are {', '.join(a.name for a in languages.ALL)}")
    roots = made(chosen)
    if options.roots:
        return
    place.SCRATCH = os.path.join(TARGET, "scratch")
    place.enter()
    # Containers are taken away on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    place.begin()
    sides = [runtimes.Runtime("runc", "runc", [], ""), runtimes.quark_runtime(os.path.abspath(options.quark), options.platform)]
    sides = [r for r in sides if r.name not in options.without.split()]
    result = {"versions": {r.name: r.version() for r in sides}, "languages": {}, "left_out": []}
    try:
        for language in chosen:
            rootfs, found = roots[language.name], {"jobs": {}, "services": {}}
            result["languages"][language.name] = found
            jobs = [what for what in language.jobs if not (options.short and what.is_long)]
            result["left_out"] += [f"{language.name}, {what.name}" for what in language.jobs if what not in jobs]
            for what in jobs:
                by = found["jobs"][what.name] = {r.name: job(r, language, what, rootfs) for r in sides}
                say(f"{language.name}: {what.name}: {tables.job_line(by)}")
            for name, arguments in language.services.items():
                by = found["services"][name] = {}
                for runtime in sides:
                    by[runtime.name] = life.life(runtime, language.server(name, arguments, rootfs), options.sleeps)
                    say(f"{name} on {runtime.name}: {servers.one_line(by[runtime.name])}")
    finally:
        runtimes.remove_cgroups()
    servers.publish(TARGET, result, tables.markdown(result))
    if bad := tables.bad(result):
        sys.exit(f"not as it has to be: {'; '.join(bad)}")


if __name__ == "__main__":
    main()
