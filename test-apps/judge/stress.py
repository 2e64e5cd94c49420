"""stress-ng: a part is a stressor, of which one runs for two seconds and verifies what it does. It passes if nothing is amiss and it did something."""
import re
import subprocess

LIMIT_S = 40


class Suite:
    name = "stress-ng"

    def __init__(self, rootfs):
        self.rootfs = rootfs

    def parts(self):
        listed = subprocess.run(["chroot", self.rootfs, "stress-ng", "--stressors"], capture_output=True, text=True, check=True)
        return sorted(listed.stdout.split())

    def run(self, place, part, limit_s, cases=()):
        outcome = place.run(["/usr/bin/stress-ng", f"--{part}", "1", "--timeout", "2", "--verify", "--metrics-brief", "--no-rand-seed",
                             "--temp-path", "/var/tmp"], limit_s)
        return {part: result(outcome)}


def result(outcome):
    if outcome.status == 0:
        # One that finds nothing that it could do ends well too.
        metrics = re.search(r"metrc?: *\[\d+\] (?!stressor|\()\S+ +(\d+) ", outcome.text)
        return "pass" if metrics and int(metrics[1]) else "did nothing"
    if re.search(r"will be skipped|not implemented|No stress workers invoked", outcome.text):
        return "skip"
    why = re.findall(r"(?:fail|error|warn):\s*\[\d+\]\s*(.*)", outcome.text)
    return f"{outcome.end()}: {why[0][:140]}" if why else outcome.end()
