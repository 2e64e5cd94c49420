"""CPython's own test suite, as Debian ships it (libpython3.11-testsuite): a part is a test module, a case one test of it."""
import json
import os

LIMIT_S = 300
TESTS = "usr/lib/python3.11/test"


class Suite:
    name = "cpython"

    def __init__(self, rootfs):
        self.rootfs = rootfs

    def parts(self):
        names = (name.removesuffix(".py") for name in os.listdir(os.path.join(self.rootfs, TESTS)) if name.startswith("test_"))
        return sorted({name for name in names if "." not in name})

    def run(self, place, part, limit_s, cases=()):
        """Runs the module, or some cases of it; {case: "pass", "skip", or what is wrong}."""
        chosen = [word for case in cases if " " not in case for word in ("-m", case)]
        outcome = place.run(["/usr/bin/python3", "/judge/in/inside/cases.py", "/judge/out/cases", "-u", "none", "-v",
                             "--timeout", str(limit_s - 10), *chosen, part], limit_s, env=["LANG=C.UTF-8"])
        found = {}
        path = os.path.join(outcome.out, "cases")
        if os.path.exists(path):
            with open(path) as f:
                for line in f:
                    try:
                        case, result = json.loads(line)
                    except ValueError:
                        continue
                    # A test that has failed in one of its parts is not made good by what comes after.
                    if found.get(case) in (None, "begun"):
                        found[case] = result
        for case, result in found.items():
            if result == "begun":
                found[case] = f"did not end: {outcome.end()}"
        if not found and not cases:
            found["(module)"] = "pass" if outcome.status == 0 else outcome.end()
        return found
