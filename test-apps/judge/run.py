#!/usr/bin/python3
"""Suites that others wrote, on the host's kernel and in quark: what passes natively has to pass here.

    make judge                                 # all; doc/compatibility/{cpython,go,stress-ng}.csv
    make judge ONLY="cpython" PART=test_socket # one part, again
    make judge AGAIN=1                         # again what failed here

Results are kept in target/judge: a part that has some is not run again, unless it is named. What a run wrote lies in
target/judge/output. Needs root. Exit code 1: something that passes natively fails here and has no reason in its table."""
import argparse
import concurrent.futures
import csv
import fnmatch
import os
import signal
import sys
import threading

import cpython
import go
import place
import stress
import table

SUITES = {"cpython": cpython, "go": go, "stress": stress}
REPEATS = 3
lock = threading.Lock()


def say(text):
    print(text, file=sys.stderr, flush=True)


def one_part(suite, limit_s, side, part, cases=()):
    with place.Place(side, suite.name, part + (".again" if cases else ""), suite.rootfs) as where:
        return suite.run(where, part, limit_s * (place.PATIENCE if side.name == "quark" else 1), cases)


def judge_part(suite, limit_s, sides, results, part):
    """Runs a part on both sides, and what differs again, so that what fails now and then is not mistaken for a defect."""
    for name, side in sides.items():
        if not results.runs(part, name):
            results.runs(part, name).append(one_part(suite, limit_s, side, part))
    for _ in range(REPEATS - 1):
        _, failed = table.judge(results.parts[part])
        if not failed or all(len(results.runs(part, name)) >= REPEATS for name in sides):
            break
        # What ends the program, or hangs, takes those along that come after it.
        fatal = {case for case, what in failed.items() if what.startswith("did not end")}
        for name, side in sides.items():
            again = {}
            for cases in (set(failed) - fatal, fatal):
                if cases:
                    seen = one_part(suite, limit_s, side, part, sorted(cases))
                    again |= {case: seen.get(case, "not run") for case in cases}
            results.runs(part, name).append(again)
    passed, failed = table.judge(results.parts[part])
    with lock:
        results.save()
        say(f"{suite.name} {part}: {len(passed)} native passed, {len(passed) - len(failed)} of them here")
        for case, what in failed.items():
            say(f"    {case}: {what}")


def judge_suite(module, options, sides):
    suite = module.Suite(options.rootfs)
    results = table.Results(suite.name)
    parts = [p for p in suite.parts() if not options.part or any(fnmatch.fnmatch(p, pattern) for pattern in options.part.split())]
    for part in parts:
        failed_here = options.again and table.judge(results.parts.get(part, {}))[1]
        if options.part or failed_here:
            results.forget(part, "quark")
            # What was run natively for some cases alone is not all of it.
            results.parts[part]["native"] = results.runs(part, "native")[:1]
    # Every part has its place now: threads only add to lists while others save.
    missing = {p: [side for side in sides if not results.runs(p, side)] for p in parts}
    todo = [p for p in parts if missing[p]]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            for done in concurrent.futures.as_completed([pool.submit(judge_part, suite, module.LIMIT_S, sides, results, p) for p in todo]):
                try:
                    done.result()
                except Exception as error:  # noqa: BLE001: the other parts are to be run whatever becomes of one
                    say(f"{suite.name}: {error!r}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            place.Place.end_all()
            raise
    total, here = table.write(suite.name, results)
    print(f"{suite.name}: cases {sum(len(p['native'][0]) for p in results.parts.values() if p.get('native'))}, {total} native passed, "
          f"{here} of them here, {100 * here / max(total, 1):.2f} %")
    with open(table.table_path(suite.name), newline="") as f:
        return [row for row in csv.DictReader(f) if not row["reason"]]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--quark", default=os.path.join(place.ROOT, "target/release/quark"))
    p.add_argument("--rootfs", default=os.path.join(place.ROOT, "target/rootfs/judge"))
    p.add_argument("--only", default="", help=f"suites, with spaces between: {', '.join(SUITES)}")
    p.add_argument("--part", default="", help="parts, with spaces between; * stands for anything")
    p.add_argument("--again", action="store_true", help="run again what failed here")
    p.add_argument("--jobs", type=int, default=2, help="parts at a time")
    options = p.parse_args()
    options.quark = os.path.abspath(options.quark)
    names = options.only.split() or list(SUITES)
    if unknown := set(names) - set(SUITES):
        sys.exit(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    place.enter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    sides = place.sides(options.quark)
    open_ones = [row for name in names for row in judge_suite(SUITES[name], options, sides)]
    if open_ones:
        sys.exit(f"{len(open_ones)} that pass natively fail here without a reason")


if __name__ == "__main__":
    main()
