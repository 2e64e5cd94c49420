"""Where a part of a suite runs: one container over the suites' root file system, of runc (that is the host's own kernel) or of quark, of the
same bundle: the same user, capabilities, limits, mounts, and a network namespace of its own with lo up."""
import json
import os
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(ROOT, "target", "judge")
SCRATCH = os.path.join(TARGET, "scratch")
sys.path.insert(0, os.path.join(ROOT, "rootfs"))
import bundle  # noqa: E402

ENTERED = "QUARK_JUDGE_ENTERED"
CGROUP = f"/quark-judge-{os.getpid()}"
MEMORY_BYTES = 6 << 30
# Of /tmp: some tests ask whether there is room.
TMP_BYTES = 6 << 30
DESCRIPTORS = 1024
# What runs is neither process 1, which signals leave alone, nor the leader of a session, whom a terminal that it opens would hang up on.
INIT = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]
# How much longer than the host quark may take: the machine has other work, and calls cost more.
PATIENCE = 2


def enter():
    """Goes into a mount namespace of its own: no mount that is made here is left on the host, however this ends."""
    if os.environ.get(ENTERED):
        return
    if os.geteuid() != 0:
        raise SystemExit("make judge needs root (namespaces, mounts): run it with sudo")
    os.environ[ENTERED] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


class Ended(Exception):
    """The run is to end: its containers have been killed, and say nothing."""


class Side:
    """A kernel that is judged: "native" or "quark"."""

    def __init__(self, name, command):
        self.name, self.command = name, command

    def call(self, *arguments, limit_s=60):
        try:
            subprocess.run([*self.command, *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=limit_s)
        except subprocess.TimeoutExpired:
            pass


def sides(quark):
    """The two, by name. Their states are this run's; what runs before it left is removed."""
    if os.path.isdir(SCRATCH):
        for name in os.listdir(SCRATCH):
            if not os.path.exists(f"/proc/{name.split('-')[-1 if name.startswith('state-') else 1]}"):
                shutil.rmtree(os.path.join(SCRATCH, name), ignore_errors=True)
    states = [os.path.join(SCRATCH, f"state-{name}-{os.getpid()}") for name in ("native", "quark")]
    for state in states:
        os.makedirs(state, exist_ok=True)
    return {"native": Side("native", ["runc", "--root", states[0]]),
            "quark": Side("quark", [quark, "--root", states[1]])}


class Outcome:
    """What became of a run: `status` is the exit code, None if its time was over; `seconds`; `out` is the directory that it saw as
    /judge/out, `text` what it wrote to its standard streams."""

    def __init__(self, status, seconds, out, text):
        self.status, self.seconds, self.out, self.text = status, seconds, out, text

    def end(self):
        """How it ended, for a reason."""
        if self.status is None:
            return "its time was over"
        return f"signal {self.status - 128}" if self.status > 128 else f"exit code {self.status}"


class Place:
    """The writable layer and the bundle of one run. A context manager: gone at the end."""
    made = 0
    lock = threading.Lock()
    running, ending = set(), False

    @classmethod
    def end_all(cls):
        """Ends what runs, and lets nothing begin: whoever waits for it gets `Ended`."""
        cls.ending = True
        for place in list(cls.running):
            place.side.call("kill", place.id, "KILL")

    def __init__(self, side, suite, part, rootfs):
        with Place.lock:
            Place.made += 1
            self.id = f"judge-{os.getpid()}-{Place.made}"
        self.side, self.rootfs = side, rootfs
        self.directory = os.path.join(SCRATCH, self.id)
        self.root, self.out = os.path.join(self.directory, "root"), os.path.join(self.directory, "out")
        logs = os.path.join(TARGET, "output", suite)
        os.makedirs(logs, exist_ok=True)
        self.log = os.path.join(logs, f"{part.replace('/', '+')}.{side.name}")

    def __enter__(self):
        for name in ("upper", "work", "root", "out"):
            os.makedirs(os.path.join(self.directory, name))
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={self.rootfs},upperdir={self.directory}/upper,"
                        f"workdir={self.directory}/work", self.root], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.root], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        for controller in ("", *os.listdir("/sys/fs/cgroup")):
            for path in (f"{CGROUP}/{self.id}", CGROUP):
                try:
                    os.rmdir(f"/sys/fs/cgroup/{controller}{path}")
                except OSError:
                    pass

    def run(self, arguments, limit_s, binds=(), **more):
        """Runs to the end, or for `limit_s` seconds."""
        path = os.path.join(self.directory, "bundle")
        config = bundle.config(self.root, [*INIT, *arguments], network="new", hostname="judge", descriptors=DESCRIPTORS,
                               memory_bytes=MEMORY_BYTES, cgroup_path=f"{CGROUP}/{self.id}",
                               binds=[(HERE, "/judge/in", "ro"), (self.out, "/judge/out", "rw"), *binds], **more)
        for mount in config["mounts"]:
            if mount["destination"] == "/tmp":
                mount["options"].append(f"size={TMP_BYTES}")
        os.makedirs(path)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(config, f)
        began = time.perf_counter()
        Place.running.add(self)
        if Place.ending:
            raise Ended
        with open(self.log, "wb") as log:
            child = subprocess.Popen([*self.side.command, "run", "--bundle", path, self.id], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                status = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
                self.side.call("kill", self.id, "KILL")
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            finally:
                self.side.call("delete", "--force", self.id)
                Place.running.discard(self)
        if Place.ending:
            raise Ended
        with open(self.log, errors="replace") as log:
            return Outcome(status, time.perf_counter() - began, self.out, log.read())
