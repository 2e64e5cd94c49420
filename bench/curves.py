"""What an operation costs by the number of objects of its kind that exist: a table, and a picture of each curve."""
import math

COLOURS = {"native": "#777", "runc": "#3a9a5b", "runsc": "#c8781e", "quark": "#2f6fb0", "before": "#a05ab0"}
WIDTH, HEIGHT, COLUMNS, LEFT, TOP, PLOT = 250, 170, 4, 40, 60, (180, 90)


def add(drawn, runtime, measured):
    """Adds a round to {curve: {runtime: {"us": {number: microseconds}, "stopped": why}}}: the least of all rounds."""
    for curve, it in measured.items():
        mine = drawn.setdefault(curve, {}).setdefault(runtime, {"us": {}, "stopped": ""})
        for number, us in it["us"].items():
            mine["us"][number] = min(us, mine["us"].get(number, us))
        mine["stopped"] = mine["stopped"] or it["stopped"]


def points(it):
    return sorted((int(number), us) for number, us in it["us"].items())


def number(us):
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def markdown(drawn, names):
    """Microseconds among few and among many; how many those were, where they could not be 10,000, and why."""
    lines = ["Microseconds of an operation, among so many objects (ended by: what kept a runtime from more):", "",
             "| curve | " + " | ".join(f"{n} | × " for n in names) + "|", "|---|" + "---|---|" * len(names)]
    for curve, runtimes in drawn.items():
        cells = []
        for name in names:
            found = points(runtimes[name]) if name in runtimes else []
            if not found:
                cells += ["", ""]
                continue
            (_, first), (most, last) = found[0], found[-1]
            end = "" if most == 10000 else f" ({most:,}: {runtimes[name]['stopped']})"
            cells += [" – ".join(number(us) for _, us in found) + end, f"{last / first:.2f}" if first > 0 else ""]
        lines.append(f"| {curve} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def svg(drawn, names):
    """One small picture for each curve, both axes logarithmic, four decades of time at least."""
    rows = -(-len(drawn) // COLUMNS)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {TOP + rows * HEIGHT}" font-family="sans-serif" font-size="10" fill="#222">',
           "<title>What an operation costs by the number of objects that exist</title>",
           f'<rect width="{COLUMNS * WIDTH}" height="{TOP + rows * HEIGHT}" fill="#fff"/>',
           '<text x="10" y="22" font-size="15" font-weight="bold">Microseconds of an operation, by the number of objects of its kind</text>']
    for i, name in enumerate(names):
        out.append(f'<line x1="{10 + 90 * i}" y1="42" x2="{30 + 90 * i}" y2="42" stroke="{COLOURS.get(name, "#000")}" stroke-width="2"/>'
                   f'<text x="{35 + 90 * i}" y="46">{name}</text>')
    for i, (curve, runtimes) in enumerate(drawn.items()):
        left, top = i % COLUMNS * WIDTH + LEFT, TOP + i // COLUMNS * HEIGHT + 20
        found = {name: points(runtimes[name]) for name in names if name in runtimes and points(runtimes[name])}
        all_us = [max(us, 1e-3) for line in found.values() for _, us in line]
        low, high = math.floor(math.log10(min(all_us))), math.ceil(math.log10(max(all_us)))
        low, high = low, max(high, low + 4)

        def place(n, us):
            x = left + (math.log10(max(n, 1)) - 2) / 2 * PLOT[0]
            return x, top + PLOT[1] * (1 - (math.log10(max(us, 1e-3)) - low) / (high - low))
        out.append(f'<text x="{left}" y="{top - 6}" font-weight="bold">{curve}</text>'
                   f'<rect x="{left}" y="{top}" width="{PLOT[0]}" height="{PLOT[1]}" fill="none" stroke="#ccc"/>')
        for decade in range(low, high + 1):
            y = place(100, 10 ** decade)[1]
            out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + PLOT[0]}" y2="{y:.1f}" stroke="#eee"/>'
                       f'<text x="{left - 4}" y="{y + 3:.1f}" text-anchor="end" fill="#666">{10.0 ** decade:g}</text>')
        for n in (100, 1000, 10000):
            out.append(f'<text x="{place(n, 1)[0]:.1f}" y="{top + PLOT[1] + 12}" text-anchor="middle" fill="#666">{n:,}</text>')
        for name, line in found.items():
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(n, us) for n, us in line))
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS.get(name, "#000")}" stroke-width="1.5"/>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
