"""The tests of Go's standard library, `go test -short std`: a part is a package, a case a test or one of its subtests. The test programs are built on
the host; the container has the sources and their testdata, but no go command: tests that build programs skip themselves."""
import os
import re
import subprocess

from place import TARGET

LIMIT_S = 300
PROGRAMS = os.path.join(TARGET, "go")
LINE = re.compile(r"^\x16?\s*--- (PASS|FAIL|SKIP): (\S+) \(")
BEGUN = re.compile(r"^\x16?=== RUN +(\S+)")


def goroot():
    return subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()


class Suite:
    name = "go"

    def __init__(self, rootfs):
        self.rootfs, self.goroot = rootfs, goroot()

    def parts(self):
        listed = subprocess.run(["go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "std"],
                                capture_output=True, text=True, check=True, cwd=os.path.join(self.goroot, "src"))
        return listed.stdout.split()

    def program(self, part):
        """The package's test program, built if it is not there."""
        os.makedirs(PROGRAMS, exist_ok=True)
        path = os.path.join(PROGRAMS, part.replace("/", "+") + ".test")
        if not os.path.exists(path):
            subprocess.run(["go", "test", "-c", "-o", path, part], check=True, cwd=os.path.join(self.goroot, "src"))
        return path

    def run(self, place, part, limit_s, cases=()):
        program = self.program(part)
        names = sorted({case.split("/")[0] for case in cases})
        chosen = [f"-test.run=^({'|'.join(names)})$"] if names else []
        binds = [(os.path.join(self.goroot, name), os.path.join(self.goroot, name), "ro") for name in ("src", "lib", "test", "api", "misc")]
        source = os.path.join(self.goroot, "src", part)
        if not os.path.isdir(source):
            source = os.path.join(self.goroot, "src/vendor", part)
        outcome = place.run(["/judge/go/" + os.path.basename(program), "-test.v=test2json", "-test.short",
                             f"-test.timeout={limit_s - 10}s", *chosen], limit_s, binds=[(PROGRAMS, "/judge/go", "ro"), *binds],
                            cwd=source, env=["LANG=C.UTF-8", f"GOROOT={self.goroot}"])
        found = {}
        for line in outcome.text.splitlines():
            if begun := BEGUN.match(line):
                found.setdefault(begun[1], f"did not end: {outcome.end()}")
            elif ended := LINE.match(line):
                found[ended[2]] = {"PASS": "pass", "SKIP": "skip", "FAIL": "failed"}[ended[1]]
        if not found and not cases:
            found["(package)"] = "pass" if outcome.status == 0 else outcome.end()
        return found
