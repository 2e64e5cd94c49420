"""What the runs found: kept in target/judge/SUITE.json, judged, and written to doc/compatibility/SUITE.csv."""
import csv
import json
import os

from place import ROOT, TARGET

COLUMNS = ["part", "case", "native", "quark", "reason"]


class Results:
    """{part: {"native": [{case: result}, …], "quark": […]}}, a dictionary for each run."""

    def __init__(self, suite):
        self.path = os.path.join(TARGET, f"{suite}.json")
        self.parts = {}
        if os.path.exists(self.path):
            with open(self.path) as f:
                self.parts = json.load(f)

    def runs(self, part, side):
        return self.parts.setdefault(part, {}).setdefault(side, [])

    def forget(self, part, side):
        self.parts.setdefault(part, {})[side] = []

    def save(self):
        with open(self.path + ".tmp", "w") as f:
            json.dump(self.parts, f, indent=0)
        os.rename(self.path + ".tmp", self.path)


def judge(by_side):
    """(cases that pass natively, {case: what it did here} of those that do not here). A case passes natively if it does so in each of its
    runs; it fails here if it does so in most of its runs."""
    native, quark = by_side.get("native", []), by_side.get("quark", [])
    if not native:
        return [], {}
    passed = [c for c, result in native[0].items() if result == "pass" and all(run.get(c, "pass") == "pass" for run in native[1:])]
    failed = {}
    for case in passed:
        seen = [run.get(case, "not run") for run in quark if run is quark[0] or case in run]
        bad = [result for result in seen if result != "pass"]
        if seen and len(bad) * 2 > len(seen):
            failed[case] = bad[0]
    return passed, failed


def table_path(suite):
    return os.path.join(ROOT, "doc", "compatibility", f"{suite}.csv")


def write(suite, results, path=None):
    """Writes the table; reasons that someone typed stay, and so do the rows of parts of which there are no results. Gives (cases that pass
    natively, those of them that pass here)."""
    path = path or table_path(suite)
    known = []
    if os.path.exists(path):
        with open(path, newline="") as f:
            known = list(csv.DictReader(f))
    reasons = {(row["part"], row["case"]): row["reason"] for row in known}
    rows = [[row[column] for column in COLUMNS] for row in known if not results.parts.get(row["part"], {}).get("quark")]
    total, failures = 0, 0
    for part in sorted(results.parts):
        if not results.parts[part].get("quark"):
            continue
        passed, failed = judge(results.parts[part])
        total, failures = total + len(passed), failures + len(failed)
        rows += [[part, case, "pass", what, reasons.get((part, case), "")] for case, what in sorted(failed.items())]
    with open(path, "w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(rows))
    return total, total - failures
