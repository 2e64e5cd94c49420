"""The tables of target/languages/report.md, and what is wrong."""
import statistics

# Of test-apps/servers, which run.py shows.
from report import later, mib, ms


def job_fault(by):
    """What is wrong with a job, or nothing. One that fails with runc can judge nobody."""
    here, there = by.get("quark"), by.get("runc")
    if there and there["status"] != 0:
        return "fails with runc"
    if not here:
        return None
    if here["status"] != 0:
        end = "did not end" if here["status"] is None else f"exit code {here['status']}"
        last = (here["errors"].strip() or here["output"].strip() or "nothing was said").splitlines()[-1]
        return f"{end}: {last[:160]}"
    if there and here["output"] != there["output"]:
        pairs = zip(there["output"].splitlines() + [""], here["output"].splitlines() + [""])
        return "prints something else: " + next((f"{h[:80]!r}, not {t[:80]!r}" for t, h in pairs if t != h), "more, or less")
    return None


def job_line(by):
    words = [f"{name} {found['seconds']:.1f} s" for name, found in by.items()]
    for name, found in by.items():
        if found["status"] != 0:
            words.append(f"{name} FAILED ({found['status']}): {found['errors'][-300:]} {found['output'][-300:]}")
    fault = job_fault(by)
    return ", ".join(words + ([f"WRONG: {fault}"] if fault else []))


def bad(result):
    """Names of what is not as it has to be."""
    found = []
    for language, of in result["languages"].items():
        found += [f"{language}, {name}" for name, by in of["jobs"].items() if job_fault(by)]
        found += [name for name, by in of["services"].items() if any("failed" in life for life in by.values())]
    return found


def jobs(result):
    lines = ["| language | job | runc s | quark s | output |", "|---|---|---:|---:|---|"]
    for language, of in result["languages"].items():
        for name, by in of["jobs"].items():
            seconds = [f"{by[n]['seconds']:.1f}" if by.get(n) else "–" for n in ("runc", "quark")]
            lines.append(f"| {language} | {name} | {' | '.join(seconds)} | {job_fault(by) or 'the same'} |")
    return lines


def services(result):
    lines = ["| service | ready ms: runc | quark | request ms: runc | quark | warm MiB: runc | quark | asleep MiB | first wake ms | later | sleeps | answers |",
             "|---" + "|---:" * 10 + "|---|"]
    for of in result["languages"].values():
        for name, by in of["services"].items():
            row = [name]
            for shown, field in ((ms, "ready_ms"), (ms, "warm_request_ms"), (mib, "warm_bytes")):
                row += [shown(by.get(n, {}).get(field)) for n in ("runc", "quark")]
            times = by.get("quark", {}).get("first_answers_ms", [])
            row += [mib(by.get("quark", {}).get("asleep_bytes")), ms(times[0] if times else None), ms(later(by.get("quark", {}))), str(len(times))]
            row.append("; ".join(f"{n}: {by[n]['failed'].splitlines()[0][:120]}" for n in by if "failed" in by[n]) or "right")
            lines.append("| " + " | ".join(row) + " |")
    return lines


def markdown(result):
    asleep = [by["quark"]["asleep_bytes"] / by["quark"]["warm_bytes"] for of in result["languages"].values() for by in of["services"].values()
              if by.get("quark", {}).get("asleep_bytes")]
    lines = ["# Languages", "", ", ".join(f"{n}: {v}" for n, v in result["versions"].items()) + ".", ""]
    lines += jobs(result) + [""] + services(result) + [""]
    if result["left_out"]:
        lines += [f"{len(result['left_out'])} long jobs were left out: {'; '.join(result['left_out'])}.", ""]
    if asleep:
        lines += [f"Asleep they hold {100 * statistics.median(asleep):.0f} % of what they hold warm (median).", ""]
    return "\n".join(lines)
