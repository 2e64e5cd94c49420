"""The tables of target/servers/report.md."""
import json
import os
import statistics


def publish(directory, result, text):
    """Writes report.json and report.md, and prints the latter."""
    with open(os.path.join(directory, "report.json"), "w") as f:
        json.dump(result, f, indent=1)
    with open(os.path.join(directory, "report.md"), "w") as f:
        f.write(text)
    print(text)


def ms(value):
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def mib(value):
    return "–" if value is None else f"{value / (1 << 20):.1f}"


def later(found):
    """The median of the last ten first answers: from the third sleep on the working set is known."""
    times = found.get("first_answers_ms", [])
    return statistics.median(times[-10:]) if len(times) > 2 else None


def one_line(found):
    words = [f"ready {ms(found.get('ready_ms'))} ms", f"warm {mib(found.get('warm_bytes'))} MiB", f"request {ms(found.get('warm_request_ms'))} ms"]
    if found["first_answers_ms"]:
        words.append(f"{len(found['first_answers_ms'])} sleeps, asleep {mib(found.get('asleep_bytes'))} MiB, first answer {ms(later(found))} ms")
    if "failed" in found:
        words.append(f"FAILED: {found['failed']}")
    return ", ".join(words)


def servers(result):
    names = [n for n in ("runc", "runsc", "quark") if n in result["versions"]]
    head = [f"ready ms ({n})" for n in names] + [f"request ms ({n})" for n in names] + [f"warm MiB ({n})" for n in names]
    head += ["asleep MiB", "woken MiB", "first answer, first sleep ms", "first answer, last ten ms", "sleeps", "failed"]
    lines = ["| server | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for server, by in result["servers"].items():
        row = [server]
        for shown, field in ((ms, "ready_ms"), (ms, "warm_request_ms"), (mib, "warm_bytes")):
            row += [shown(by.get(n, {}).get(field)) for n in names]
        q = by.get("quark", {})
        times = q.get("first_answers_ms", [])
        row += [mib(q.get("asleep_bytes")), mib(q.get("woken_bytes")), ms(times[0] if times else None), ms(later(q)), str(len(times))]
        row.append("; ".join(f"{n}: {by[n]['failed'].splitlines()[0][:120]}" for n in by if "failed" in by[n]))
        lines.append("| " + " | ".join(row) + " |")
    return lines


def throughput(result):
    found = result["throughput"]
    names = [n for n in ("runc", "runsc", "before", "quark") if n in result["versions"]]
    peers = [n for n in names if n != "quark"]
    head = [f"{n}, 1/s" for n in names] + [f"quark / {n}" for n in peers]
    lines = ["| load | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for load, by in found.items():
        median = {n: statistics.median(by[n]) for n in names if by.get(n)}
        row = [load] + [f"{median[n]:,.0f}" if n in median else "–" for n in names]
        for n in peers:
            row.append(f"{median['quark'] / median[n]:.2f}" if n in median and "quark" in median else "–")
        lines.append("| " + " | ".join(row) + " |")
    return lines


def markdown(result):
    lines = ["# Servers", "", "Medians. " + ", ".join(f"{n}: {v}" for n, v in result["versions"].items()) + ".", ""]
    if result["servers"]:
        lines += servers(result) + [""]
    if result["throughput"]:
        lines += throughput(result) + [""]
    return "\n".join(lines)
