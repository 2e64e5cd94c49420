#!/usr/bin/python3
"""Runs twelve well-known servers from Debian's packages in containers of quark, runc and runsc, side by side.

    make servers                              # all; target/servers/report.json and report.md
    make servers ONLY="redis sshd"            # some of them
    make servers ONLY=throughput              # requests a second of redis, nginx and PostgreSQL
    make servers ONLY=logins                  # sshd with PAM and cron: each way to log in, beside runc

Each is started as its users start it, with a network namespace of its own, and loaded with data; every answer is looked at. In quark it
is put to sleep 20 times and woken by a request. Needs root. Exit code 1: a server failed on quark and not on runc."""
import argparse
import os
import shutil
import sys

import place

from harness import runtimes  # noqa: E402: place.py shows where it is

import catalog
import life
import logins
import report
import throughput


def say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--quark", default=os.path.join(place.ROOT, "target/release/quark"))
    p.add_argument("--before", help="another quark binary: throughput is measured with both")
    p.add_argument("--runsc", default=shutil.which("runsc"), help="gVisor's binary, if it is to be compared")
    p.add_argument("--platform", default="auto")
    p.add_argument("--only", default="", help="names of servers, or throughput, or logins, with spaces between")
    p.add_argument("--without", default="", help="names of runtimes, with spaces between")
    p.add_argument("--sleeps", type=int, default=20)
    p.add_argument("--rounds", type=int, default=5, help="of throughput")
    options = p.parse_args()
    names = options.only.split()
    unknown = set(names) - {s.name for s in catalog.ALL} - {"throughput", "logins"}
    if unknown:
        sys.exit(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in catalog.ALL)}, throughput, logins")
    place.enter()
    place.begin()
    all_of_them = [runtimes.Runtime("runc", "runc", [], ""), runtimes.quark_runtime(os.path.abspath(options.quark), options.platform)]
    if options.runsc:
        all_of_them.append(runtimes.Runtime("runsc", os.path.abspath(options.runsc), ["--platform=systrap"], ""))
    if options.before:
        all_of_them.append(runtimes.quark_runtime(os.path.abspath(options.before), options.platform, "before"))
    all_of_them = [r for r in all_of_them if r.name not in options.without.split()]
    result = {"versions": {r.name: r.version() for r in all_of_them}, "servers": {}, "throughput": {}}
    try:
        for server in catalog.ALL:
            if names and server.name not in names:
                continue
            for runtime in all_of_them:
                if runtime.name == "before":
                    continue
                found = life.life(runtime, server, options.sleeps)
                result["servers"].setdefault(server.name, {})[runtime.name] = found
                say(f"{server.name} on {runtime.name}: {report.one_line(found)}")
        differences = []
        if not names or "logins" in names:
            result["logins"], differences = logins.compare(all_of_them, say)
        if not names or "throughput" in names:
            result["throughput"] = throughput.measure(all_of_them, options.rounds, say)
    finally:
        runtimes.remove_cgroups()
    report.publish(os.path.join(place.ROOT, "target", "servers"), result, report.markdown(result))
    bad = [name for name, by in result["servers"].items() if "failed" in by.get("quark", {}) and "failed" not in by.get("runc", {})]
    if differences:
        bad.append("logins")
    if bad:
        sys.exit(f"failed on quark: {', '.join(bad)}")


if __name__ == "__main__":
    main()
