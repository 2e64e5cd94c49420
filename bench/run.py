#!/usr/bin/python3
"""Measures quark and its peers side by side in one run: start, system calls, a Python function's latency and memory, quark's
hibernation, and images of containers. Rounds are interleaved, so that a noisy minute hits all alike; numbers are medians. jobs.json says for
each job its unit, the peer it is compared with and the ratio that must not be exceeded.
Writes target/bench/report.json and target/bench/report.md."""
import argparse
import json
import os
import statistics
import subprocess
import sys

import clones
import curves
import demo
from harness import http, runtimes

BENCH = [(os.path.join(runtimes.TARGET, "bench"), "/mnt/bench", "ro")]
KEEP_ALIVE_REQUESTS = 300
JOBS = ["start", "micro", "threads", "scale", "hello", "hibernation", "clone"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def start_round(runtime):
    seconds, _ = runtime.run("true", "busybox", ["/bin/true"])
    return {"start_true": seconds * 1e3}


def micro_round(runtime, round_ms):
    _, out = runtime.run("micro", "busybox", ["/mnt/bench/micro", str(round_ms)], BENCH)
    return json.loads(out)


THREADS = ["mmap_1", "mmap_64", "dontneed_1", "dontneed_8", "dontneed_64", "threads_2000", "mappings_10000", "pipe_writes",
           "tcp_round_trips", "fork_exec_100", "getppid_beside", "read_beside", "open_beside", "socketpair_beside", "futex_beside"]


def threads_round(runtime):
    """Each job in a container of its own: what one leaves behind does not slow the next one down."""
    found = {}
    for job in THREADS:
        _, out = runtime.run("threads", "busybox", ["/mnt/bench/threads", job], BENCH)
        found.update(json.loads(out))
    return found


KINDS = ["threads", "processes", "queued_signals", "mappings", "descriptors", "pipes", "timers", "posix_timers", "udp_sockets", "tcp_connections",
         "unix_sockets", "epoll", "epoll_ready", "epoll_watchers", "semaphores", "shared_memory", "message_queues", "tmpfs_entries", "inotify_watches",
         "flocks", "record_locks", "record_ranges"]
# For 10,000 pairs of sockets.
DESCRIPTORS = 20480


def scale_round(runtime, drawn, failures):
    """Each kind of object in a container of its own; the curves go into `drawn`. A kind that fails does not keep the others
    from being measured."""
    for kind in KINDS:
        if (runtime.name, kind) in failures:
            continue
        try:
            _, out = runtime.run("scale", "busybox", ["/mnt/bench/scale", kind], BENCH, descriptors=DESCRIPTORS)
            curves.add(drawn, runtime.name, json.loads(out))
        except (runtimes.Failed, OSError, subprocess.TimeoutExpired, ValueError) as e:
            failures[(runtime.name, kind)] = str(e)
            say(f"  {runtime.name}, {kind}: {e}")
    return {}


def scale_results(drawn, results):
    """Of each curve where it begins, and where it ends."""
    for curve, by_runtime in drawn.items():
        for name, it in by_runtime.items():
            (_, few), (_, many) = curves.points(it)[0], curves.points(it)[-1]
            results.setdefault(name, {}).update({f"scale_{curve}": [many], f"scale_{curve}_few": [few]})


def hello_round(runtime):
    port = http.free_port()
    with runtime.start("hello", "python", demo.command(port, 0), demo.FUNCTION) as c:
        cold = c.cold_s(port)
        http.keep_alive_s(port, 20)
        warm = statistics.median(http.keep_alive_s(port, KEEP_ALIVE_REQUESTS))
        held = c.memory()["cgroup_bytes"]
    return {"hello_cold": cold * 1e3, "hello_warm": warm * 1e6, "hello_memory": held / (1 << 20) if held is not None else None}


def interleave(present, rounds, one_round, label, results, failures):
    """Adds the numbers of each round to results[runtime][job]."""
    for i in range(rounds):
        say(f"{label}: round {i + 1} of {rounds}")
        for runtime in present:
            if (runtime.name, label) in failures:
                continue
            try:
                for job, value in one_round(runtime).items():
                    if value is not None:
                        results.setdefault(runtime.name, {}).setdefault(job, []).append(value)
            except (runtimes.Failed, OSError, TimeoutError, ValueError) as e:
                failures[(runtime.name, label)] = str(e)
                say(f"  {runtime.name}: {e}")


def lives(quarks, dictionary_mb, repeat, label, failures):
    """{name: lives} of quark alone or of two builds of it, which take turns."""
    found = {quark.name: [] for quark in quarks}
    for i in range(repeat):
        for quark in quarks:
            if (quark.name, "hibernation") in failures:
                continue
            try:
                found[quark.name].append(demo.measure(quark, dictionary_mb, f"{label}, {quark.name}, life {i + 1} of {repeat}"))
            except (runtimes.Failed, OSError, TimeoutError) as e:
                failures[(quark.name, "hibernation")] = str(e)
                say(f"  {quark.name}: {e}")
    return found


def hibernation(quarks, repeat, results, failures):
    """quark alone, against itself."""
    hello = lives(quarks, 0, repeat, "Python hello", failures)
    dictionary = lives(quarks, 100, max(repeat // 3, 1), "Python with a 100 MB dictionary", failures)
    for name in (q.name for q in quarks if (q.name, "hibernation") not in failures):
        r = demo.report_of(hello[name], "", "")
        m, d = r["memory"], demo.report_of(dictionary[name], "", "")["memory"]
        found = {"wake_reap": r["wake_reap_ms"], "hello_cold_start": r["cold_ms"], "woken": r["woken_ms"], "warm": r["warm_ms"],
                 "hibernated_memory": m["hibernated"]["cgroup_bytes"] / (1 << 20), "warm_memory": m["warm"]["cgroup_bytes"] / (1 << 20),
                 "hibernated_dictionary": d["hibernated"]["cgroup_bytes"] / (1 << 20), "warm_dictionary": d["warm"]["cgroup_bytes"] / (1 << 20)}
        found["hibernated_memory_limit"] = found["hibernated_memory"]
        for job, value in found.items():
            results.setdefault(name, {}).setdefault(job, []).append(value)


def peer_value(job, medians):
    peer = job["peer"]
    if peer[0].isdigit():
        return float(peer.split()[0])
    name, _, other = peer.partition(":")
    return medians.get(name, {}).get(other or job["id"])


def judge(job, medians):
    """The job's row of the report."""
    mine, peer = medians.get("quark", {}).get(job["id"]), peer_value(job, medians)
    ratio = mine / peer if mine is not None and peer else None
    verdict = "–" if job["threshold"] is None else "not measured" if ratio is None else "ok" if ratio <= job["threshold"] else "MISSED"
    values = {name: m[job["id"]] for name, m in medians.items() if job["id"] in m}
    before = values.get("before")
    change = mine / before if mine is not None and before else None
    return {**job, "medians": values, "peer_value": peer, "ratio": ratio, "verdict": verdict, "change": change}


def markdown(rows, names):
    def number(value):
        return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    compares = "before" in names
    heads = ["job", "unit", *names, "quark / peer", "at most", ""] + ["quark / before"] * compares
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for r in rows:
        cells = [number(r["medians"].get(n)) for n in names]
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f} × {r['peer']}"
        change = [f"{r['change']:.2f}" if r["change"] is not None else ""] if compares else []
        lines.append("| " + " | ".join([r["what"], r["unit"], *cells, ratio, str(r["threshold"] or ""), r["verdict"], *change]) + " |")
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quark", default=os.path.join(runtimes.TARGET, "release", "quark"))
    p.add_argument("--platform", choices=["auto", "process", "kvm"], default="auto",
                   help="of quark, and of runsc where it has it too; kvm is judged against Linux itself (jobs-kvm.json)")
    p.add_argument("--rounds", type=int, default=15, help="of the start job; the others get a part of it")
    p.add_argument("--only", action="append", choices=JOBS, help="jobs to run")
    p.add_argument("--without", action="append", default=[], help="a runtime to leave out")
    p.add_argument("--before", help="another quark binary, measured in the same rounds: what a change costs")
    p.add_argument("--check", action="store_true", help="fail when a threshold is missed or not measured")
    o = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench: needs root (namespaces, cgroups): run it with sudo")
    wanted = o.only or JOBS
    before = os.path.abspath(o.before) if o.before else None
    everyone = [r for r in runtimes.all_runtimes(os.path.abspath(o.quark), o.platform, before) if r.name not in o.without]
    present = [r for r in everyone if r.available()]
    for r in everyone:
        say(f"{r.name}: {r.version()}" if r in present else f"{r.name}: missing; to install it: {r.install}")

    results, failures, drawn = {}, {}, {}
    try:
        if "start" in wanted:
            interleave(present, o.rounds, start_round, "start", results, failures)
        if "micro" in wanted:
            # Where everything is slow, more rounds for the fork that a job begins with not to count.
            round_ms = 400 if o.platform == "kvm" else 40
            interleave(present, max(o.rounds // 5, 1), lambda r: micro_round(r, round_ms), "micro", results, failures)
        if "threads" in wanted:
            interleave(present, max(o.rounds // 5, 1), threads_round, "threads", results, failures)
        if "scale" in wanted:
            interleave(present, max(o.rounds // 5, 1), lambda r: scale_round(r, drawn, failures), "scale", results, failures)
            scale_results(drawn, results)
        if "hello" in wanted:
            interleave(present, max(o.rounds // 3, 1), hello_round, "hello", results, failures)
        if "hibernation" in wanted:
            hibernation([r for r in present if r.name in ("quark", "before")], max(o.rounds // 3, 1), results, failures)
        if "clone" in wanted:
            clones.interleaved(present, max(o.rounds // 3, 1), interleave, results, failures)
    finally:
        runtimes.remove_cgroups()

    medians = {name: {job: statistics.median(v) for job, v in jobs.items()} for name, jobs in results.items()}
    jobs = "jobs-kvm.json" if o.platform == "kvm" else "jobs.json"
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), jobs)) as f:
        rows = [judge(job, medians) for job in json.load(f)]
    names = [r.name for r in everyone if r.name in medians]
    # Of some jobs alone, the others' rows say nothing.
    text = markdown([r for r in rows if r["medians"] or not o.only], names)
    out = os.path.join(runtimes.TARGET, "bench")
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "report.json"), "w") as f:
        json.dump({"versions": {r.name: r.version() for r in present},
                   "missing": {r.name: r.install for r in everyone if r not in present},
                   "failures": {f"{name}: {label}": why for (name, label), why in failures.items()},
                   "rounds": o.rounds, "jobs": rows, "samples": results, "scale": drawn}, f, indent=2)
        f.write("\n")
    if drawn:
        text += "\n" + curves.markdown(drawn, names)
        with open(os.path.join(out, "scale.svg"), "w") as f:
            f.write(curves.svg(drawn, names))
    with open(os.path.join(out, "report.md"), "w") as f:
        f.write(text)
    print(f"\n{text}")
    for r in everyone:
        if r not in present:
            print(f"missing: {r.name}; to install it: {r.install}")
    for (name, label), why in failures.items():
        print(f"failed: {name}, {label}: {why}")
    for r in rows:
        if r["id"].startswith("scale_") and r["verdict"] == "MISSED":
            print(f"failed: {r['what']}: {r['ratio']:.1f} times what it takes among 100, at most {r['threshold']}")
    print(f"medians; written to {out}/report.json and report.md" + (" and scale.svg" if drawn else ""))
    if o.check and any(r["verdict"] in ("MISSED", "not measured") for r in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
