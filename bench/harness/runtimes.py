"""Container runtimes with runc's command line, and the host itself, behind one interface."""
import json
import os
import shutil
import subprocess
import sys
import time

from . import http, memory

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.join(ROOT, "target")
sys.path.insert(0, os.path.join(ROOT, "rootfs"))
import bundle  # noqa: E402

# How much slower this machine is than others: an emulated one.
SLOWNESS = int(os.environ.get("QUARK_TEST_SLOWNESS", "1"))
LIMIT_S = 120 * SLOWNESS
CGROUP = f"/quark-bench-{os.getpid()}"


class Failed(Exception):
    """A command of a runtime failed; the text says which and what it said."""


class Runtime:
    """An OCI runtime."""

    def __init__(self, name, binary, options, install):
        self.name, self.binary, self.options, self.install = name, binary, options, install
        self.scratch = os.path.join(TARGET, "bench", "scratch", name)
        self.state = os.path.join(self.scratch, "state")

    def available(self):
        return shutil.which(self.binary) is not None

    def version(self):
        out = subprocess.run([self.binary, "--version"], capture_output=True, text=True, timeout=LIMIT_S)
        return (out.stdout or out.stderr).splitlines()[0] if out.stdout or out.stderr else "unknown"

    def command(self, *arguments):
        return [self.binary, *self.options, "--root", self.state, *arguments]

    def call(self, *arguments, check=True):
        out = subprocess.run(self.command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        if check and out.returncode != 0:
            raise Failed(f"{self.name} {' '.join(arguments)}: exit code {out.returncode}: {out.stderr.strip()[-600:]}")
        return out

    def bundle(self, name, rootfs, arguments, binds=(), **more):
        path = os.path.join(self.scratch, name)
        bundle.write(path, rootfs=os.path.join(TARGET, "rootfs", rootfs), args=arguments, binds=binds, readonly=True,
                     cgroup_path=f"{CGROUP}/{self.name}-{name}", **more)
        return path

    def run(self, name, rootfs, arguments, binds=(), **more):
        """Runs to the end; (seconds, standard output). `more` is for the bundle."""
        path = self.bundle(name, rootfs, arguments, binds, **more)
        began = time.perf_counter()
        out = self.call("run", "--bundle", path, f"{name}-{os.getpid()}")
        return time.perf_counter() - began, out.stdout

    def start(self, name, rootfs, arguments, binds=(), saved=False, **more):
        """Starts in the background. `more` is for the bundle."""
        return Container(self, name, self.bundle(name, rootfs, arguments, binds, **more), saved=saved)


class Container:
    """A container in the background. A context manager: it is gone at the end. `order` is what makes it: `run`, or `restore`
    with its options. One that is `saved` has no streams that CRIU would have to save, and its runtime a log. One that does
    not `begin` yet is made by its `command`."""

    def __init__(self, runtime, name, path, order=("run",), saved=False, begins=True):
        self.runtime, self.name, self.bundle = runtime, name, path
        self.id = f"{name}-{os.getpid()}"
        self.cgroup = f"{CGROUP}/{runtime.name}-{name}"
        self.pid_file = os.path.join(path, "pid")
        self.log = os.path.join(path, "output")
        log = ("--log", self.log) if saved else ()
        self.command = runtime.command(*log, *order, "--detach", "--bundle", path, "--pid-file", self.pid_file, self.id)
        with open(self.log, "wb") as file:
            if begins:
                self._begin(subprocess.DEVNULL if saved else file)

    def _begin(self, output):
        self.began = time.perf_counter()
        # A detached container keeps these streams: they must not be pipes of ours.
        done = subprocess.run(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=LIMIT_S)
        if done.returncode != 0:
            self.__exit__()
            raise Failed(f"{' '.join(self.command)}: exit code {done.returncode}: {self.output()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.runtime.call("kill", self.id, "KILL", check=False)
        end = time.perf_counter() + 10
        while self.runtime.call("delete", "--force", self.id, check=False).returncode != 0 and time.perf_counter() < end:
            time.sleep(0.02)

    def output(self):
        with open(self.log, errors="replace") as f:
            return f.read().strip()[-800:]

    def pid(self):
        with open(self.pid_file) as f:
            return int(f.read())

    def alive(self):
        if not os.path.exists(f"/proc/{self.pid()}"):
            raise Failed(f"{self.runtime.name}: the container has ended: {self.output()}")

    def cold_s(self, port, *question):
        """Seconds from the start of the command that made it to the first answer."""
        return http.first_answer(port, self.began, LIMIT_S, self.alive, *question)

    def kill(self, signal):
        self.runtime.call("kill", self.id, signal)

    def state(self):
        return json.loads(self.runtime.call("state", self.id).stdout)

    def processes(self):
        found = set(memory.cgroup_processes(self.cgroup))
        return found | set(memory.descendants(self.pid()))

    def memory(self):
        """The memory object of the reports."""
        return {"pss_bytes": memory.pss_bytes(self.processes()), "cgroup_bytes": memory.cgroup_bytes(self.cgroup),
                "store_bytes": memory.store_bytes(self.pid())}


class Native:
    """The host itself, in the same root file system by chroot."""
    name, install = "native", ""

    def available(self):
        return True

    def version(self):
        return "Linux " + os.uname().release

    def _arguments(self, rootfs, arguments, binds):
        if binds:
            # No mount: the program lies outside the root file system.
            for source, destination, _ in binds:
                arguments = [a.replace(destination, source) for a in arguments]
            return arguments
        return ["chroot", os.path.join(TARGET, "rootfs", rootfs), *arguments]

    def run(self, name, rootfs, arguments, binds=(), **_):
        command = self._arguments(rootfs, arguments, binds)
        began = time.perf_counter()
        out = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        if out.returncode != 0:
            raise Failed(f"native {' '.join(command)}: {out.stderr.strip()[-600:]}")
        return time.perf_counter() - began, out.stdout

    def start(self, name, rootfs, arguments, binds=()):
        return NativeProcess(self._arguments(rootfs, arguments, binds))


class NativeProcess:
    def __init__(self, command):
        self.began = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def alive(self):
        if self.process.poll() is not None:
            raise Failed("native: the program has ended")

    def cold_s(self, port):
        return http.first_answer(port, self.began, LIMIT_S, self.alive)

    def memory(self):
        return {"pss_bytes": memory.pss_bytes([self.process.pid]), "cgroup_bytes": None, "store_bytes": 0}


def all_runtimes(quark, platform="auto", before=None):
    """Those that are compared. `before`: another quark binary, of an earlier state."""
    gvisor = "kvm" if platform == "kvm" else "systrap"
    return [
        Native(),
        Runtime("runc", "runc", [], "apt-get install runc"),
        Runtime("runsc", "runsc", [f"--platform={gvisor}", "--network=host"],
                "CGO_ENABLED=0 go install gvisor.dev/gvisor/runsc@latest, then copy it to /usr/local/bin"),
        quark_runtime(quark, platform),
        *([quark_runtime(before, platform, "before")] if before else []),
    ]


def quark_runtime(binary, platform="auto", name="quark"):
    return Runtime(name, binary, [f"--platform={platform}"], "make build")


def remove_cgroups():
    """Takes away the directories that a runtime left below ours."""
    _, root = memory.cgroup_root()
    points = {root}
    with open("/proc/self/mountinfo") as f:
        points |= {line.split()[4] for line in f if " - cgroup" in line}
    for point in points:
        for directory, _, _ in os.walk(point + CGROUP, topdown=False):
            try:
                os.rmdir(directory)
            except OSError:
                pass
