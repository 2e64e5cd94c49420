#!/usr/bin/python3
"""Makes random system calls in a sandbox (fuzz.c), puts it to sleep every few seconds, and sees whether it lives and answers.

    make fuzz-syscalls SECONDS=1800 SEED=7

Every number of the table may be called, with all capabilities and a memory limit, so programs in the container are killed, starved and
stopped, and now and then it comes to an end that a guest may choose (who writes into the memory of its pid 1 ends it): then, and every
two minutes, it gets a new container. A failure is: `quark state` or `quark exec` does not answer in time, the sandbox process ends by
itself, or its log tells of a panic. Then the seed and the last calls are printed. Needs root; the container has a network of its own."""
import argparse
import collections
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WORKSPACE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(WORKSPACE, "rootfs"))
import bundle  # noqa: E402

MEMORY_BYTES = 256 << 20
SLOTS, ENTRIES = 64, 64  # of fuzz.c
PENDING = 0x646e6570
CONTAINER_SECONDS = 120
# What the log says when the sandbox has failed, not the guest.
TROUBLE = re.compile(r"panic|kernel fault|kernel exception|is ended|broke the protocol|assertion", re.I)


class Failure(Exception):
    """The sandbox did what it must not."""


def call_names():
    """Names of system calls by number, from the kernel's own table."""
    with open(os.path.join(WORKSPACE, "qkernel/src/syscall/table.rs")) as f:
        return {int(n): name for n, name in re.findall(r"^    (\d+) (?:r#)?(\w+) =>", f.read(), re.M)}


class Container:
    """One run of the fuzzer in a fresh container."""

    def __init__(self, quark, directory, seed, patience):
        self.patience = patience
        self.counted, self.seen = [0] * 512, [0] * 512
        self.id = f"fuzz-{os.getpid()}-{seed:x}"
        self.directory = os.path.join(directory, self.id)
        self.volume = os.path.join(self.directory, "volume")
        self.log = os.path.join(self.directory, "log")
        os.makedirs(self.volume)
        # All that a guest could fill of the host's disks.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,nodev,nosuid", "fuzz", self.volume], check=True)
        self.quark = [quark, "--root", os.path.join(self.directory, "root"), "--log", self.log]
        rootfs = os.path.join(WORKSPACE, "target/rootfs/busybox")
        config = bundle.config(rootfs, ["/mnt/apps/fuzz", str(seed), "/mnt/functions/calls"], readonly=True, network="new",
                               memory_bytes=MEMORY_BYTES, binds=[
                                   (os.path.join(WORKSPACE, "target/test-apps/fuzz"), "/mnt/apps", "ro"), (self.volume, "/mnt/functions", "rw")])
        with open("/proc/sys/kernel/cap_last_cap") as f:
            last = int(f.read())
        names = bundle.CAPABILITIES + [f"CAP_{n}" for n in (
            "DAC_READ_SEARCH LINUX_IMMUTABLE NET_BROADCAST NET_ADMIN IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_PTRACE SYS_PACCT "
            "SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG LEASE AUDIT_CONTROL MAC_OVERRIDE MAC_ADMIN SYSLOG "
            "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE").split()]
        process = config["process"]
        process["capabilities"] = {s: names[:last + 1] for s in ("bounding", "effective", "permitted")}
        process["noNewPrivileges"] = False
        config["linux"]["readonlyPaths"] = config["linux"]["maskedPaths"] = []
        for m in config["mounts"]:
            if m["destination"] == "/tmp":
                m["options"].append("size=32m")
        with open(os.path.join(self.directory, "config.json"), "w") as f:
            json.dump(config, f)
        self.tail = collections.deque(maxlen=200)
        self.process = subprocess.Popen(self.quark + ["run", "--pid-file", os.path.join(self.directory, "pid"), "--bundle", self.directory, self.id], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        for line in self.process.stderr:
            self.tail.append(line[:500].decode(errors="replace").rstrip())

    def command(self, *words):
        """Runs a quark command: its exit status and output; Failure if it has no end in time."""
        child = subprocess.Popen(self.quark + list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        began = time.monotonic()
        try:
            output, _ = child.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            threads = self.threads()
            child.kill()
            child.communicate()
            if self.process.poll() is not None:
                return -1, b"the container has ended"
            raise Failure(f"quark {' '.join(words)}: no answer in {self.patience:.0f} s\n{threads}") from None
        self.slowest = max(getattr(self, "slowest", 0), time.monotonic() - began)
        return child.returncode, output

    def threads(self):
        """What the threads of the sandbox process do in a second: whether it hangs, works, or waits for a processor."""
        def look():
            found = {}
            with open(os.path.join(self.directory, "pid")) as f:
                tasks = f"/proc/{int(f.read())}/task"
            for task in os.listdir(tasks):
                def read(name, task=task):
                    with open(f"{tasks}/{task}/{name}") as f:
                        return f.read().strip()
                try:
                    ran, waited, _ = read("schedstat").split()
                    found[task] = (read("comm"), read("stat").rsplit(")", 1)[1].split()[0], int(ran), int(waited), read("wchan"))
                except OSError:
                    pass
            return found
        try:
            before = look()
            time.sleep(1)
            after = look()
        except (OSError, ValueError) as e:
            return f"threads: {e}"
        lines = []
        for task, (name, state, ran, waited, wchan) in after.items():
            ran, waited = ((now - then) // 1_000_000 for now, then in zip((ran, waited), before.get(task, (0, 0, ran, waited))[2:4]))
            if ran or waited or state != "S":
                lines.append(f"  thread {task} {name}: {state} {wchan}, ran {ran} ms and waited {waited} ms for a processor of the last 1000 ms")
        return f"{len(after)} threads, of which {len(lines)} do something:\n" + "\n".join(lines[:40])

    def has_ended(self):
        """Whether the guest has ended its container; Failure if it ended otherwise."""
        status = self.process.poll()
        try:
            with open(self.log, errors="replace") as f:
                for line in f:
                    if TROUBLE.search(line):
                        raise Failure(f"the log says: {line.strip()[:500]}")
        except FileNotFoundError:
            pass
        if status is None:
            return False
        time.sleep(0.2)
        trouble = [line for line in self.tail if line.startswith("quark:") or TROUBLE.search(line)]
        if status == 70 or status < 0 or trouble:
            raise Failure(f"the sandbox ended with status {status}: {' | '.join(trouble[-3:])}")
        return True

    def counts(self):
        """How often each number was called, as far as was seen: the guest can write to the file, cut it off and take its name away. Asked
        for every second, it knows what was called between two times at which nobody had done so."""
        size = 32 + ENTRIES * 64
        try:
            with open(os.path.join(self.volume, "calls"), "r+b", buffering=0) as f:
                f.seek(SLOTS * size + 32)
                now = struct.unpack("<512Q", f.read(4096))
                for number, (before, after) in enumerate(zip(self.seen, now)):
                    # What cannot be is no count.
                    if before <= after < before + (1 << 16):
                        self.counted[number] += after - before
                    elif after >= 1 << 32:
                        f.seek(SLOTS * size + 32 + 8 * number)
                        f.write(bytes(8))
                        now = now[:number] + (0,) + now[number + 1:]
                self.seen = now
        except (OSError, struct.error):
            pass
        return self.counted

    def last_calls(self, names):
        """The end of the ring: for each thread its last calls."""
        try:
            with open(os.path.join(self.volume, "calls"), "rb") as f:
                data = f.read()
        except OSError as e:
            return [f"no ring: {e}"]
        lines = []
        size = 32 + ENTRIES * 64
        for slot in range(SLOTS):
            part = data[slot * size:(slot + 1) * size]
            if len(part) < size:
                break
            pid, tid, seed, count = struct.unpack_from("<4Q", part)
            if count == 0:
                continue
            lines.append(f"process {pid} thread {tid} seed {seed:#x}, {count} calls, the last:")
            for i in range(max(0, count - 4), count):
                nr, *rest = struct.unpack_from("<8Q", part, 32 + i % ENTRIES * 64)
                result = "?" if rest[6] == PENDING else str(struct.unpack("<q", struct.pack("<Q", rest[6]))[0])
                lines.append(f"  {names.get(nr, nr)}({', '.join(f'{a:#x}' for a in rest[:6])}) = {result}")
        return lines

    def end(self, keep=False):
        def delete():
            subprocess.run(self.quark + ["delete", "--force", self.id], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=self.patience, check=False)
        try:
            if self.process.poll() is None:
                delete()
            self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            # One that hangs is ended by its own number, as far as it is still its.
            with open(os.path.join(self.directory, "pid")) as f:
                pid = int(f.read())
            with open(f"/proc/{pid}/cmdline") as f:
                ours = self.id in f.read()
            if ours:
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            delete()
        subprocess.run(["umount", "-l", self.volume], check=False)
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--quark", default=os.path.join(WORKSPACE, "target/release/quark"))
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--seed", type=lambda t: int(t, 0), default=int(time.time()))
    p.add_argument("--patience", type=float, default=10, help="seconds that an answer may take")
    a = p.parse_args()
    names = call_names()
    os.makedirs(os.path.join(WORKSPACE, "target/fuzz"), exist_ok=True)
    directory = tempfile.mkdtemp(prefix="run-", dir=os.path.join(WORKSPACE, "target/fuzz"))
    end = time.monotonic() + a.seconds
    seed, containers, ended, sleeps, refused, slowest = a.seed, 0, 0, 0, 0, 0.0
    calls = [0] * 512
    print(f"seed {a.seed}, {a.seconds:.0f} s", flush=True)
    while time.monotonic() < end:
        container = Container(a.quark, directory, seed, a.patience)
        containers += 1
        until = min(end, time.monotonic() + CONTAINER_SECONDS)
        failed = True
        try:
            started = time.monotonic()
            while container.command("state", container.id)[0] != 0:
                if container.has_ended():
                    # The guest may have ended it before anybody saw that it ran.
                    if any(container.counts()):
                        break
                    raise Failure("it ended before it called anything: " + " | ".join(container.tail))
                if time.monotonic() > started + a.patience:
                    raise Failure("it did not start: " + " | ".join(container.tail))
                time.sleep(0.1)
            second = 0
            while time.monotonic() < until and not container.has_ended():
                second += 1
                container.counts()
                container.command("state", container.id)
                if second % 3 == 0:
                    status, _ = container.command("hibernate", "--force", "--timeout=200ms", container.id)
                    sleeps, refused = sleeps + (status == 0), refused + (status != 0)
                    time.sleep(0.3)
                    # A sleep is ended by SIGCONT, or by who comes.
                    if second % 2:
                        container.command("kill", container.id, "CONT")
                container.command("exec", container.id, "/bin/true")
                time.sleep(0.7)
            ended += container.process.poll() is not None
            failed = False
        except Failure as failure:
            print(f"FAILED with seed {seed} ({containers - 1} containers before): {failure}")
            print("\n".join(list(container.tail)[-40:]))
            print("\n".join(container.last_calls(names)))
            print(f"what is left lies in {container.directory}", flush=True)
            return 1
        finally:
            slowest = max(slowest, getattr(container, "slowest", 0))
            calls = [a + b for a, b in zip(calls, container.counts())]
            container.end(keep=failed)
        seed += 1
    shutil.rmtree(directory, ignore_errors=True)
    uncalled = [name for number, name in names.items() if not calls[number]]
    print(f"{sum(calls)} calls, of {len(names)} numbers not called: {' '.join(uncalled) or 'none'}")
    few = sum(calls) < 100 * a.seconds
    print(f"{'FAILED: hardly any calls were made' if few else 'ok'}: {containers} containers, {ended} ended by their guests, {sleeps} sleeps ({refused} refused), slowest answer {slowest:.1f} s")
    return 1 if few else 0


if __name__ == "__main__":
    sys.exit(main())
