"""The tables of target/functionbench/report.md."""
import statistics

RUNTIMES = ["runc", "runsc", "quark"]


def median(lives, key):
    values = [life[key] for life in lives if life.get(key) is not None]
    return statistics.median(values) if values else None


def ms(seconds):
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def mib(value):
    return "–" if value is None else f"{value / (1 << 20):.1f}"


def wrong_answers(by_runtime):
    """What is wrong with the answers of one function: a line for each life whose digests are not those of the others. What
    most lives say first is taken as right."""
    lives = [(runtime, life["digests"]) for runtime, all_lives in by_runtime.items() for life in all_lives if life.get("digests")]
    if not lives:
        return []
    right = statistics.mode(digests[0] for _, digests in lives)
    return [f"{runtime}: wrong answer: {sum(d != right for d in digests)} of {len(digests)} have another digest"
            for runtime, digests in lives if any(d != right for d in digests)]


def failures(result):
    """A line for each thing that failed."""
    lines = [f"{name}: {text}" for name, text in result.get("not_built", {}).items()]
    for name, by_runtime in result["functions"].items():
        lines += [f"{name} on {runtime}: {life['failed']}" for runtime, lives in by_runtime.items() for life in lives if "failed" in life]
        lines += [f"{name} on {text}" for text in wrong_answers(by_runtime)]
    return lines


def one_line(life):
    words = [f"cold {ms(life.get('cold_s'))} ms", f"warm {ms(life.get('warm_s'))} ms", f"{mib(life.get('warm_bytes'))} MiB"]
    if "asleep_bytes" in life:
        words += [f"asleep {mib(life['asleep_bytes'])} MiB", f"woken {ms(life.get('woken_first_s'))} ms", f"again {ms(life.get('woken_again_s'))} ms"]
    return ", ".join(words) + (f"; FAILED: {life['failed']}" if "failed" in life else "")


def table(result):
    names = [n for n in RUNTIMES if n in result["versions"]]
    columns = [(f"{title} ({n})", n, key, shown) for title, key, shown in
               (("cold ms", "cold_s", ms), ("warm ms", "warm_s", ms), ("warm MiB", "warm_bytes", mib)) for n in names]
    if "quark" in names:
        columns += [(title, "quark", key, shown) for title, key, shown in (
            ("asleep MiB", "asleep_bytes", mib), ("woken ms", "woken_first_s", ms), ("woken ms, later", "woken_again_s", ms),
            ("next ms", "woken_next_s", ms))]
    lines = ["| function | " + " | ".join(title for title, *_ in columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    for name, by_runtime in result["functions"].items():
        cells = [shown(median(by_runtime.get(n, []), key)) for _, n, key, shown in columns]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return lines


def markdown(result):
    lines = ["# FunctionBench", "", f"Medians of {result['rounds']} lives. " + ", ".join(f"{n}: {v}" for n, v in result["versions"].items()) + ".", ""]
    lines += table(result) + [""]
    failed = failures(result)
    if failed:
        lines += ["Failed:", ""] + ["- " + line.replace("\n", " ") for line in failed] + [""]
    return "\n".join(lines)
