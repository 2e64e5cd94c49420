#!/usr/bin/python3
"""Draws doc/life.svg from the report of the demo: `make demo && python3 doc/life.py target/demo/report.json`."""
import json
import os
import sys

MIB = 1 << 20
WIDTH, HEIGHT, BASE = 760, 300, 230


def main():
    with open(sys.argv[1]) as f:
        report = json.load(f)
    held, stored = ({s: m[key] / MIB for s, m in report["memory"].items()} for key in ("cgroup_bytes", "store_bytes"))
    scale = 140 / max(*held.values(), *stored.values())
    wakes = [f"{report['wake_page_fault_ms']:.1f} ms, page faults", f"{report['wake_reap_ms']:.1f} ms, REAP"]
    stages = [("cold", 60, None, None, [f"{report['cold_ms']:.0f} ms"]),
              ("warm", 240, held["warm"], None, [f"{report['warm_ms']:.2f} ms"]),
              ("hibernated", 420, held["hibernated"], stored["hibernated"], ["asleep"]),
              ("woken", 610, held["woken"], None, wakes)]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" fill="#222">',
           "<title>A Python function under quark: memory held at each stage of its life</title>",
           '<defs><pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
           '<rect width="6" height="6" fill="#eef3f8"/><line x1="0" y1="0" x2="0" y2="6" stroke="#7a9cc0" stroke-width="2"/></pattern>',
           '<marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           '<text x="20" y="24" font-size="15" font-weight="bold">One Python function, its whole life</text>',
           '<text x="20" y="42" fill="#666">memory held by the sandbox\'s cgroup (solid), and pages in its swap store on disk (hatched)</text>',
           f'<line x1="20" y1="{BASE}" x2="{WIDTH - 20}" y2="{BASE}" stroke="#999"/>']

    def bar(x, value, style):
        h = value * scale
        out.append(f'<rect x="{x}" y="{BASE - h:.0f}" width="50" height="{h:.0f}" {style}/>')
        out.append(f'<text x="{x + 25}" y="{BASE - h - 6:.0f}" text-anchor="middle">{value:.1f} MiB</text>')

    for name, x, memory, store, lines in stages:
        if memory:
            bar(x, memory, 'fill="#2f6fb0"')
        if store:
            bar(x + 58, store, 'fill="url(#h)" stroke="#7a9cc0"')
        out.append(f'<text x="{x + 25}" y="{BASE + 20}" text-anchor="middle" font-weight="bold">{name}</text>')
        for i, line in enumerate(lines):
            out.append(f'<text x="{x + 25}" y="{BASE + 38 + 16 * i}" text-anchor="middle" fill="#444">{line}</text>')
    for label, left, right in [("first answer", 120, 232), ("SIGSTOP", 300, 412), ("a request", 535, 602)]:
        out.append(f'<line x1="{left}" y1="{BASE - 14}" x2="{right}" y2="{BASE - 14}" stroke="#555" marker-end="url(#a)"/>')
        out.append(f'<text x="{(left + right) // 2}" y="{BASE - 20}" text-anchor="middle" fill="#444" font-size="12">{label}</text>')
    out.append("</svg>")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "life.svg"), "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
