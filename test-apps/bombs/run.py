#!/usr/bin/env python3
"""Throws memory bombs (bombs.c) at sandboxes with a memory limit and checks after each that the sandbox lives.

A round: one to three bombs at once, as root or as an unprivileged user. While they run and after they have ended, a fresh `exec` must
answer in time; in every other round `state`, `kill`, a forced sleep and a CONT come in between. Then everything of the round is killed, `state` and a
STOP must answer, and the memory must be back near its base.
What is random comes from --seed, which is printed. Exit code 0: every round was good. Needs root.
"""

import argparse
import collections
import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
WORKSPACE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Failed(Exception):
    """A round went wrong."""


def memory_cgroup(pid):
    """The directory of the memory cgroup that this process is in, in cgroup v1 or v2."""
    cgroup = {}
    with open("/proc/%d/cgroup" % pid, encoding="utf-8") as f:
        for line in f:
            _, controllers, path = line.strip().split(":", 2)
            cgroup[controllers] = path
    root = "/sys/fs/cgroup/memory" if "memory" in cgroup else "/sys/fs/cgroup"
    return root + cgroup.get("memory", cgroup.get("", ""))


class Container:
    """One sandbox, and the commands to it."""

    def __init__(self, options, limit):
        self.options = options
        self.limit = limit
        self.dir = tempfile.mkdtemp(prefix="bombs-", dir=options.scratch)
        self.id = "bombs-%d-%s" % (os.getpid(), os.path.basename(self.dir)[6:])
        rootfs = os.path.join(self.dir, "rootfs")
        for sub in ("bin", "proc", "sys", "dev", "tmp"):
            os.makedirs(os.path.join(rootfs, sub))
        busybox = next(p for p in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(p))
        shutil.copy(busybox, os.path.join(rootfs, "bin/busybox"))
        shutil.copy(options.bombs, os.path.join(rootfs, "bin/bombs"))
        for applet in ("true", "sleep", "sh"):
            os.symlink("busybox", os.path.join(rootfs, "bin", applet))
        caps = ["CAP_" + c for c in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SYS_ADMIN", "SYS_RESOURCE", "IPC_LOCK", "SETUID", "SETGID")]
        config = {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs"},
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/bombs", "init"],
                "env": ["PATH=/bin"],
                "capabilities": {k: caps for k in ("bounding", "effective", "permitted")},
                "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1 << 20, "hard": 1 << 20}],
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            ],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "mount"}],
                "resources": {"memory": {"limit": limit, "swap": limit}},
            },
        }
        with open(os.path.join(self.dir, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.log = os.path.join(self.dir, "log")
        self.started = False
        self.memory_cgroup = "/nonexistent"
        with open(os.path.join(self.dir, "output"), "wb") as output:
            code = subprocess.call(
                self.command("run", "--detach", "--pid-file", os.path.join(self.dir, "pid"), "--bundle", self.dir, self.id),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=60)
        if code:
            raise Failed("the container did not start: " + self.output())
        self.started = True
        with open(os.path.join(self.dir, "pid"), encoding="utf-8") as f:
            self.pid = int(f.read())
        self.memory_cgroup = memory_cgroup(self.pid)
        self.base = None
        # How long each fresh exec took, in seconds, and of that from the request's arrival in the guest kernel to the end of the process.
        self.answers, self.inside = [], []
        self.read_to = 0

    def log_since(self):
        """Lines that the log has got since the last call."""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as f:
                f.seek(self.read_to)
                lines = f.readlines()
                self.read_to = f.tell()
                return lines
        except OSError:
            return []

    def command(self, *args):
        command = [self.options.quark, "--root", os.path.join(self.dir, "root"), "--log", self.log]
        if self.options.explain:
            command.append("--debug")
        if self.options.platform:
            command += ["--platform", self.options.platform]
        return command + list(args)

    def quark(self, what, *args, within, fail=True, quiet=False):
        """Runs a command; how long it took, and what it printed. `quiet`: it leaves somebody behind who would keep a pipe open."""
        begin, begun = time.monotonic(), time.time()
        stdout = subprocess.DEVNULL if quiet else subprocess.PIPE
        # A group of its own, so that a command that hangs can be ended with whatever it started.
        child = subprocess.Popen(self.command(*args), stdin=subprocess.DEVNULL, stdout=stdout,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        views = []
        if self.options.explain:
            self.log_since()
            for _ in range(3):
                try:
                    child.wait(timeout=self.options.explain)
                    break
                except subprocess.TimeoutExpired:
                    views.append("%.2f s: %s" % (time.monotonic() - begin, self.look()))
        try:
            out, _ = child.communicate(timeout=max(within * 3, 15))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if self.options.explain:
                self.explain(child.pid, begun, views)
            raise Failed("%s: no answer in %.0f s" % (what, time.monotonic() - begin)) from None
        took = time.monotonic() - begin
        if self.options.explain and args[0] == "exec":
            self.explain(child.pid, begun, views if took > self.options.explain or child.returncode else None)
        text = (out or b"").decode(errors="replace").strip()
        if fail and child.returncode:
            raise Failed("%s: exit code %d: %s" % (what, child.returncode, text[-500:]))
        if took > within:
            raise Failed("%s took %.2f s" % (what, took))
        return took, text

    def look(self):
        """The sandbox from outside: states of its processes' threads, memory of its cgroup, load."""
        states = collections.Counter()
        own = collections.Counter()
        path = self.memory_cgroup
        try:
            pids = open(path + "/cgroup.procs", encoding="utf-8").read().split()
            for pid in pids:
                for tid in os.listdir("/proc/%s/task" % pid):
                    try:
                        with open("/proc/%s/task/%s/stat" % (pid, tid), encoding="utf-8") as f:
                            state = f.read().rsplit(") ", 1)[1][0]
                        (own if int(pid) == self.pid else states)[state] += 1
                    except OSError:
                        pass
            words = []
            for name in ("memory.usage_in_bytes", "memory.current", "memory.failcnt"):
                if os.path.exists(path + "/" + name):
                    words.append("%s %s" % (name, open(path + "/" + name, encoding="utf-8").read().strip()))
        except (OSError, ValueError, StopIteration) as e:
            words = [str(e)]
        with open("/proc/loadavg", encoding="utf-8") as f:
            load = f.read().strip()
        return "sandbox %s, stubs %s, %s, load %s" % (dict(own), dict(states), ", ".join(words), load)

    def explain(self, client, begun, views):
        """Where the time of an exec went, by the log of client and sandbox. `views`: None, and only the times are kept."""
        lines = self.log_since()
        request = pid = arrived = ended = None
        shown, kills = [], 0
        for line in lines:
            stamp, _, text = line.partition(" level=")
            at = datetime.datetime.fromisoformat(stamp[6:-5]).replace(tzinfo=datetime.timezone.utc).timestamp() - begun \
                if stamp.startswith('time="') else 0
            text = text.partition("msg=")[2].strip().strip('"')
            if "client %d" % client in text and "started guest process" in text:
                pid = text.rsplit(" ", 1)[1]
            kills += "out of memory: killed" in text
            if text.startswith("request ") and ": start" in text:
                request = text.split()[1]
                arrived = at
            if pid and text.startswith("process %s, from outside, ended" % pid):
                ended = at
            shown.append("%8.3f %s" % (at, text[:160]))
        sys.stdout.flush()
        if arrived is not None and ended is not None:
            self.inside.append(ended - arrived)
        if views is None:
            return
        for view in views:
            print("      " + view)
        many = [s for s in shown if "killed" not in s and ("client %d" % client in s or "from outside" in s or "request" in s
                or "control connection" in s)]
        slow = [s for s in shown if ": a stub after" in s and int(s.split()[-2]) > 50000]
        print("      %d kills, %d of %d stubs took more than 50 ms%s" % (
            kills, len(slow), sum(": a stub after" in s for s in shown), ", the last one: " + slow[-1] if slow else ""))
        busy = [s for s in shown if " busy for " in s]
        print("      %d long times in the kernel%s" % (len(busy), ":" if busy else ""))
        many = sorted(many[:40] + busy[:20], key=lambda s: float(s.split()[0]))
        for line in many:
            print("      " + line)
        sys.stdout.flush()

    def exec(self, *args, user=None, within=None, fail=True, what="exec"):
        more = ["--user", user] if user else []
        return self.quark(what, "exec", *more, self.id, *args, within=within or self.options.answer, fail=fail)

    def exec_until(self, what):
        """Tries `exec` until it is answered, within the time for one: one that finds no memory, or is killed for it, is tried again as
        somebody at a prompt would. How long it took in all."""
        begin = time.monotonic()
        while True:
            left = self.options.answer - (time.monotonic() - begin)
            try:
                self.exec("/bin/true", what=what, within=max(left, 0.1))
                self.answers.append(time.monotonic() - begin)
                return self.answers[-1]
            except Failed as e:
                if time.monotonic() - begin > self.options.answer or not self.options.again or "exit code" not in str(e):
                    raise

    def stats(self):
        _, text = self.quark("events", "events", "--stats", self.id, within=10)
        return json.loads(text)["data"]["quark"]

    def held(self):
        """Bytes of guest memory in use."""
        memory = self.stats()["memory"]
        return memory["frames_used"] + memory["kernel_heap_held"]

    def output(self):
        """The last that the sandbox printed (a panic, say), then the last of its log, and what its memory cgroup counted."""
        text = ""
        for name in ("output", "log"):
            try:
                with open(os.path.join(self.dir, name), encoding="utf-8", errors="replace") as f:
                    text += f.read()[-1500:]
            except OSError:
                pass
        return text + self.cgroup_events()

    def cgroup_events(self):
        """What the host's memory cgroup of the sandbox tells of its limit: whether the host killed somebody."""
        words = []
        for name in ("memory.oom_control", "memory.failcnt", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.events", "memory.peak"):
            try:
                with open(os.path.join(self.memory_cgroup, name), encoding="utf-8") as f:
                    words.append("%s: %s" % (name, " ".join(f.read().split())))
            except OSError:
                pass
        return "\n" + ", ".join(words)

    def alive(self):
        try:
            with open("/proc/%d/stat" % self.pid, encoding="utf-8") as f:
                return f.read().rsplit(") ", 1)[1][0] not in "ZX"
        except OSError:
            return False

    def close(self):
        if self.started:
            if self.alive():
                os.kill(self.pid, signal.SIGKILL)
            child = subprocess.run(self.command("delete", "--force", self.id), stdin=subprocess.DEVNULL, check=False,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
            self.started = child.returncode != 0
        shutil.rmtree(self.dir, ignore_errors=True)


def control(container):
    """What somebody who manages containers may ask for at any moment, here in the middle of the bombs: it is done, or refused with one line."""
    answer = container.options.answer
    container.quark("state during the bombs", "state", container.id, within=answer)
    container.quark("kill during the bombs", "kill", container.id, "WINCH", within=answer)
    child_took, text = container.quark("forced sleep during the bombs", "hibernate", "--force", "--timeout=200ms", container.id,
                                       within=20, fail=False)
    if len(text.splitlines()) > 1:
        raise Failed("a forced sleep during the bombs: " + text)
    container.quark("state after it", "state", container.id, within=answer)
    container.quark("CONT during the bombs", "kill", container.id, "CONT", within=20)
    return child_took


def play(container, bombs, users, disturb, verbose):
    """One round. `disturb`: at which part of the bombs' time control requests come."""
    seconds = container.options.bomb_seconds
    if container.base is None:
        container.exec("/bin/true", within=20)
        container.base = container.held()
    for bomb, user in zip(bombs, users):
        more = ["--user", user] if user else []
        container.quark("exec of " + bomb, "exec", "--detach", *more, container.id, "/bin/bombs", bomb, str(seconds),
                        within=container.options.answer, fail=False, quiet=True)
    begin = time.monotonic()
    end = begin + seconds
    slowest = 0
    while True:
        took = container.exec_until("exec during the bombs")
        slowest = max(slowest, took)
        if disturb is not None and time.monotonic() > begin + disturb * seconds:
            disturb = None
            control(container)
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    container.exec("/bin/bombs", "reap", within=20, what="reaping")
    took = container.exec_until("exec after the bombs")
    slowest = max(slowest, took)
    _, text = container.quark("state", "state", container.id, within=container.options.answer)
    # Bombs are honest programs: whoever was ended for an attack was shown something by mistake.
    if json.loads(text)["status"] != "running" or json.loads(text).get("incidents"):
        raise Failed("state: " + text)
    container.quark("STOP", "kill", container.id, "STOP", within=20)
    _, text = container.quark("state", "state", container.id, within=container.options.answer)
    hibernation = json.loads(text).get("hibernation")
    container.quark("CONT", "kill", container.id, "CONT", within=20)
    container.exec("/bin/true", within=20, what="exec after the wake")
    end = time.monotonic() + 10 * container.options.slowness
    while True:
        held = container.held()
        if held < container.base + max(8 * MIB, container.limit // 8):
            break
        if time.monotonic() > end:
            memory = container.stats()["memory"]
            raise Failed("%d MiB are still held, %d MiB at first: %s" % (held // MIB, container.base // MIB, memory))
        # Files of the bombs stay until somebody removes them.
        container.exec("/bin/bombs", "clean", within=30, what="cleaning")
        time.sleep(0.2)
    if verbose:
        print("    slowest exec %.2f s, %s, %d of %d MiB held" % (slowest, hibernation, held // MIB, container.base // MIB), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quark", default=os.path.join(WORKSPACE, "target/release/quark"))
    parser.add_argument("--bombs", default=os.path.join(WORKSPACE, "target/test-apps/bombs/bombs"))
    parser.add_argument("--platform")
    parser.add_argument("--rounds", type=int, default=0, help="how many (0: until --time is over)")
    parser.add_argument("--time", type=float, default=20, help="seconds, if --rounds is not given")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--without", default="", help="bombs that are left out, separated by commas")
    parser.add_argument("--only", help="these bombs alone, separated by commas, each in a round of its own")
    parser.add_argument("--limit", type=int, help="the memory limit in MiB (random otherwise)")
    parser.add_argument("--bomb-seconds", type=float, default=1.5)
    parser.add_argument("--answer", type=float, default=1, help="seconds that a fresh exec may take")
    parser.add_argument("--again", action="store_true", help="try an exec that found no memory again, as long as --answer allows")
    parser.add_argument("--slowness", type=float, default=float(os.environ.get("QUARK_TEST_SLOWNESS", "1")))
    parser.add_argument("--scratch", default=os.path.join(WORKSPACE, "target"))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--explain", type=float, default=0, metavar="SECONDS",
                        help="have everything log much, and show where the time of an exec went that took longer or failed")
    options = parser.parse_args()
    options.answer *= options.slowness
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print("seed %d" % seed, flush=True)
    rng = random.Random(seed)
    names = subprocess.check_output([options.bombs, "list"], text=True).split()
    names = [name for name in names if name not in options.without.split(",")]
    wanted = options.only.split(",") if options.only else None
    begin = time.monotonic()
    container, bad, done, lived = None, 0, 0, 0
    answers, inside = [], []
    try:
        while True:
            if wanted is not None:
                if done == len(wanted):
                    break
                bombs = wanted[done].split("+")
            elif options.rounds:
                if done == options.rounds:
                    break
                bombs = rng.sample(names, rng.choice((1, 1, 2, 3)))
            else:
                if time.monotonic() - begin > options.time:
                    break
                bombs = rng.sample(names, rng.choice((1, 1, 2, 3)))
            users = [rng.choice((None, "65534:65534")) for _ in bombs]
            disturb = rng.choice((None, rng.random()))
            limit = (options.limit or rng.choice((64, 96, 128, 192, 256))) * MIB
            print("round %d: %s under %d MiB" % (
                done, ", ".join("%s as %s" % (b, u or "root") for b, u in zip(bombs, users)),
                (container.limit if container else limit) // MIB), flush=True)
            done += 1
            try:
                if container is None:
                    container, lived = Container(options, limit), 0
                play(container, bombs, users, disturb, options.verbose)
                lived += 1
                if lived == 8:
                    container.close()
                    container = None
            except (Failed, subprocess.SubprocessError, OSError) as error:
                bad += 1
                dead = "" if container is None or container.alive() else " (the sandbox is dead)"
                print("    FAILED: %s%s" % (error, dead), flush=True)
                if container is not None:
                    print("    " + container.output().replace("\n", "\n    "), flush=True)
                    container.close()
                container = None
            finally:
                if container is not None:
                    answers += container.answers
                    inside += container.inside
                    container.answers, container.inside = [], []
    finally:
        if container is not None:
            container.close()
    for name, times in (("fresh execs", answers), ("of that inside of the sandbox", inside)):
        if times:
            times.sort()
            print("%s: %d answered, median %.3f s, p99 %.3f s, max %.3f s, %d over %g s" % (
                name, len(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1],
                sum(t > options.answer for t in times), options.answer))
    print("%d rounds, %d failed, seed %d" % (done, bad, seed))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
