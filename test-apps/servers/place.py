"""Where a program runs: a network namespace with a veth pair, its root file system under a writable layer, a bundle."""
import os
import resource
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "bench"))
sys.path.insert(0, os.path.join(ROOT, "rootfs"))
import bundle  # noqa: E402
from harness import runtimes  # noqa: E402

# What is written for a while; `begin` makes it.
SCRATCH = os.path.join(ROOT, "target", "servers", "scratch")
READY_LIMIT_S = 90 * runtimes.SLOWNESS
# As many as an engine gives, or the most that is ours to give.
DESCRIPTORS = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
ENTERED = "QUARK_SERVERS_ENTERED"


def enter():
    """Goes into network and mount namespaces of its own: nothing that is made here is left on the host, however this ends."""
    if os.environ.get(ENTERED):
        return
    if os.geteuid() != 0:
        raise SystemExit("this needs root (namespaces, mounts): run it with sudo")
    os.environ[ENTERED] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def host(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip()}")


def begin():
    """Once, after `enter`."""
    host("ip", "link", "set", "lo", "up")
    os.makedirs("/run/netns", exist_ok=True)
    host("mount", "-t", "tmpfs", "netns", "/run/netns")
    shutil.rmtree(SCRATCH, ignore_errors=True)
    os.makedirs(SCRATCH)


def ready_s(container, client):
    """Seconds from the start of the command that made the container to its first right answer."""
    while True:
        try:
            client.ready()
            return time.perf_counter() - container.began
        except Exception as error:  # noqa: BLE001: each driver has its own errors for a server that is not there yet
            client.close()
            if time.perf_counter() - container.began > READY_LIMIT_S:
                raise runtimes.Failed(f"not ready within {READY_LIMIT_S} s: {error!r}: {container.output()}") from None
            container.alive()
            time.sleep(0.002)


class Place:
    """The network and the file system of one container of a `catalog.Server`. A context manager: gone at the end."""
    made = 0

    def __init__(self, runtime, server):
        Place.made += 1
        self.number = Place.made
        self.name = f"{runtime.name}-{server.name}-{self.number}"
        self.server, self.runtime = server, runtime
        self.directory = os.path.join(SCRATCH, self.name)
        self.root = os.path.join(self.directory, "root")
        self.address = f"10.77.{self.number}.2"

    def __enter__(self):
        for name in ("upper", "work", "root"):
            os.makedirs(os.path.join(self.directory, name))
        host("mount", "-t", "overlay", "overlay", "-o",
             f"lowerdir={self.server.rootfs},upperdir={self.directory}/upper,workdir={self.directory}/work", self.root)
        self.users = {}
        with open(os.path.join(self.root, "etc/passwd")) as f:
            for line in f:
                name, _, uid, gid = line.split(":")[:4]
                self.users[name] = (int(uid), int(gid))
        with open(os.path.join(self.root, "etc/group")) as f:
            fields = [line.strip().split(":") for line in f]
        self.groups = [int(gid) for _, _, gid, members in fields if self.server.user in members.split(",")]
        uid, gid = self.users[self.server.user]
        for directory in self.server.directories:
            path = os.path.join(self.root, directory.lstrip("/"))
            os.makedirs(path, exist_ok=True)
            os.chown(path, uid, gid)
        if self.server.prepare:
            self.server.prepare(self.root)
        n, inside = self.number, f"q{self.number}"
        host("ip", "netns", "add", inside)
        host("ip", "link", "add", f"v{n}", "type", "veth", "peer", "name", "eth0", "netns", inside)
        host("ip", "address", "add", f"10.77.{n}.1/24", "dev", f"v{n}")
        host("ip", "link", "set", f"v{n}", "up")
        for words in (["link", "set", "lo", "up"], ["address", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"],
                      ["route", "add", "default", "via", f"10.77.{n}.1"]):
            host("ip", "-n", inside, *words)
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "delete", f"q{self.number}"], capture_output=True)
        subprocess.run(["umount", "-l", self.root], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, begins=True):
        """The container, just started, or with the command that would start it."""
        uid, gid = self.users[self.server.user]
        path = os.path.join(self.directory, "bundle")
        bundle.write(path, rootfs=self.root, args=self.server.arguments, cwd=self.server.cwd, uid=uid, gid=gid,
                     env=self.server.environment, groups=self.groups, hostname=self.server.name, network=f"/run/netns/q{self.number}", descriptors=DESCRIPTORS,
                     no_new_privileges=not self.server.gains_rights,
                     cgroup_path=f"{runtimes.CGROUP}/{self.runtime.name}-{self.name}")
        return runtimes.Container(self.runtime, self.name, path, begins=begins)
