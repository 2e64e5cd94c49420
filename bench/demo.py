#!/usr/bin/python3
"""The whole life of a Python HTTP function in a sandbox: cold start, warm requests, hibernated by SIGSTOP, woken by a
request (page faults), hibernated, woken by a request (REAP), hibernated, woken by SIGCONT, killed; repeated for medians.
Prints a table and writes target/demo/report.json."""
import argparse
import json
import os
import statistics
import sys
import time

from harness import http, runtimes

WARM_REQUESTS = 20
FUNCTION = [(os.path.join(runtimes.ROOT, "test-apps", "functions"), "/mnt/functions", "ro")]
LATENCIES = ["cold", "warm", "wake_page_fault", "wake_reap", "wake_sigcont", "woken"]
STATES = ["warm", "hibernated", "woken"]


def command(port, dictionary_mb):
    arguments = ["/usr/bin/python3", "/mnt/functions/hello.py", "--port", str(port)]
    return arguments + (["--dictionary-mb", str(dictionary_mb)] if dictionary_mb else [])


def sleep(container, hibernates):
    """SIGSTOP, and a look whether it worked."""
    container.kill("STOP")
    state = container.state().get("hibernation")
    if hibernates and state != "Hibernated":
        raise runtimes.Failed(f"after SIGSTOP the hibernation state is {state}, not Hibernated")


def one_life(runtime, dictionary_mb, hibernates=True, progress=lambda text: None):
    """One life; ({latency name: seconds}, {state: memory})."""
    port = http.free_port()
    seconds, memory = {}, {}
    with runtime.start("function", "python", command(port, dictionary_mb), FUNCTION) as c:
        seconds["cold"] = c.cold_s(port)
        progress("cold")
        # The first requests after the start still import and compile.
        for _ in range(5):
            http.request_s(port)
        seconds["warm"] = statistics.median(http.request_s(port) for _ in range(WARM_REQUESTS))
        memory["warm"] = c.memory()
        progress("warm")
        if hibernates:
            for cause in ("wake_page_fault", "wake_reap"):
                sleep(c, hibernates)
                memory["hibernated"] = c.memory()
                progress("asleep")
                seconds[cause] = http.request_s(port)
                progress(cause)
            sleep(c, hibernates)
            began = time.perf_counter()
            c.kill("CONT")
            http.request_s(port)
            seconds["wake_sigcont"] = time.perf_counter() - began
            progress("wake_sigcont")
            seconds["woken"] = statistics.median(http.request_s(port) for _ in range(WARM_REQUESTS))
            memory["woken"] = c.memory()
            progress("woken")
    progress("killed")
    return seconds, memory


def platform_of(runtime):
    """The platform that `quark doctor` says is used."""
    out = runtime.call("doctor", check=False).stdout
    for line in out.splitlines():
        for name in ("process", "kvm"):
            if "auto" in line.lower() and name in line.lower().split("auto", 1)[1]:
                return name
    return "process"


def median_or_none(values):
    values = [v for v in values if v is not None]
    return int(statistics.median(values)) if values else None


def report_of(lives, platform, workload):
    """The medians, with exactly the fields that docs and tests name."""
    report = {"platform": platform, "workload": workload}
    for name in LATENCIES:
        values = [s[name] for s, _ in lives if name in s]
        report[name + "_ms"] = round(statistics.median(values) * 1000, 3) if values else None
    report["memory"] = {}
    for state in STATES:
        found = [m[state] for _, m in lives if state in m]
        report["memory"][state] = {k: median_or_none(m[k] for m in found) for k in found[0]} if found else None
    return report


def mib(value):
    return "" if value is None else f"{value / (1 << 20):8.1f} MiB"


def table(report):
    rows = [("state", "response", "memory held", "PSS", "swapped")]
    memory = report["memory"]
    for title, latency, state in [("cold", "cold_ms", None), ("warm", "warm_ms", "warm"), ("hibernated", None, "hibernated"),
                                  ("woken by a request, page faults", "wake_page_fault_ms", None),
                                  ("woken by a request, REAP", "wake_reap_ms", None),
                                  ("woken by SIGCONT, then a request", "wake_sigcont_ms", None), ("woken", "woken_ms", "woken")]:
        ms, m = report.get(latency) if latency else None, memory.get(state) if state else None
        rows.append((title, f"{ms:.2f} ms" if ms is not None else "", *((mib(m["cgroup_bytes"]), mib(m["pss_bytes"]), mib(m["store_bytes"])) if m else ("", "", ""))))
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))) for r in rows]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def measure(runtime, dictionary_mb, title, hibernates=True):
    """[`one_life`], with progress on standard error."""
    print(f"  {title}:", end="", file=sys.stderr, flush=True)
    try:
        return one_life(runtime, dictionary_mb, hibernates, lambda text: print(" " + text, end="", file=sys.stderr, flush=True))
    finally:
        print(file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--quark", default=os.path.join(runtimes.TARGET, "release", "quark"))
    p.add_argument("--platform", default="auto")
    p.add_argument("--repeat", type=int, default=10)
    p.add_argument("--dictionary-mb", type=int, default=0, help="the function holds a dictionary of this size")
    p.add_argument("--out", default=os.path.join(runtimes.TARGET, "demo", "report.json"))
    p.add_argument("--runtime", help="develop this script against another runtime, without the sleeps")
    o = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("demo: needs root (namespaces, cgroups): run it with sudo")
    if o.runtime:
        runtime, platform = next(r for r in runtimes.all_runtimes(o.quark) if r.name == o.runtime), o.runtime
    else:
        runtime = runtimes.quark_runtime(os.path.abspath(o.quark), o.platform)
        platform = platform_of(runtime) if o.platform == "auto" else o.platform
    workload = f"python-hello-{o.dictionary_mb}mb" if o.dictionary_mb else "python-hello"
    print(f"demo: {workload} on {runtime.name} (platform {platform})", file=sys.stderr)
    try:
        lives = [measure(runtime, o.dictionary_mb, f"life {i + 1} of {o.repeat}", not o.runtime) for i in range(o.repeat)]
    except (runtimes.Failed, OSError, TimeoutError) as e:
        sys.exit(f"demo: {e}")
    finally:
        runtimes.remove_cgroups()
    report = report_of(lives, platform, workload)
    os.makedirs(os.path.dirname(o.out), exist_ok=True)
    with open(o.out, "w") as f:
        json.dump(report, f, indent=2)
        f.write("\n")
    print(f"\n{table(report)}\n\nmedians of {len(lives)}; written to {o.out}")


if __name__ == "__main__":
    main()
