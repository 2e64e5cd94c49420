"""The cases of matrix.py: an option of Docker's, what is tried, and what must come of it."""
import os
import re
import socket
import time
from dataclasses import dataclass
from typing import Callable, Optional


@dataclass
class Case:
    """`check` does it with one runtime; what it gives matches `expected`."""
    group: str
    option: str
    what: str
    check: Callable
    expected: Optional[str] = None
    # quark refuses it, in a line of its own.
    refused: bool = False
    # What quark lacks for it.
    missing: str = ""


CASES = []
GROUP = ""


def group(name):
    global GROUP
    GROUP = name


def case(option, what, expected=None, **how):
    """Makes a case of a function of a run."""
    def add(check):
        CASES.append(Case(GROUP, option, what, check, expected, **how))
        return check
    return add


def simple(option, what, options, script, expected, net="none", **how):
    """A case that runs a script to its end."""
    CASES.append(Case(GROUP, option, what, lambda run: run.run(*options, script=script, net=net), expected, **how))


def file_of(run, name, text):
    """A file on the host, for each run anew."""
    path = os.path.join(run.work, f"{run.name()}-{name}")
    with open(path, "w") as f:
        f.write(text)
    return path


def directory_of(run):
    path = os.path.join(run.work, f"{run.name()}-dir")
    os.mkdir(path)
    return path


# ---------------------------------------------------------------------------------------------------------------------------------------
group("Program, environment, identity")
simple("-e", "a variable", ["-e", "A=v w"], "echo $A", "v w")


@case("--env-file", "variables of a file", "1 2")
def _(run):
    return run.run("--env-file", file_of(run, "env", "A=1\nB=2\n"), script="echo $A $B")


@case("--entrypoint", "another program", "hello")
def _(run):
    return run.ask("run", "--rm", "--runtime", run.runtime, "--network", "none", "--entrypoint", "echo", "quark-test", "hello")


simple("-w", "a directory that is not there", ["-w", "/a/b"], "pwd", "/a/b")
simple("-u", "a name", ["-u", "app"], "id -u; id -g; echo $HOME", "1000\n1000\n/tmp")
simple("-u", "numbers", ["-u", "7:8"], "id -u; id -g", "7\n8")
simple("--group-add", "a further group", ["-u", "app", "--group-add", "extra"], "id -G", "1000 2000")
simple("-h", "a host name", ["-h", "box"], "hostname; cat /proc/sys/kernel/hostname", "box\nbox")
simple("--domainname", "a domain name", ["--domainname", "example"], "cat /proc/sys/kernel/domainname", "example")
simple("--init", "an init of Docker's as process 1", ["--init"], "cat /proc/1/comm", "docker-init|tini|init")


@case("exit code", "the program's", "7")
def _(run):
    return str(run.docker("run", "--rm", "--runtime", run.runtime, "--network", "none", "quark-test", "sh", "-c", "exit 7")[0])


@case("exit code", "a missing program is 127, a directory 126", "127 126")
def _(run):
    base = ["run", "--rm", "--runtime", run.runtime, "--network", "none", "quark-test"]
    return f"{run.docker(*base, 'no-such')[0]} {run.docker(*base, '/etc')[0]}"


@case("-i", "standard input", "5")
def _(run):
    return run.ask("run", "-i", "--rm", "--runtime", run.runtime, "--network", "none", "quark-test", "wc", "-c", input="12345")


@case("-t", "a terminal", r"/dev/(pts/0|console)\s+crw.*")
def _(run):
    return run.ask("run", "-t", "--rm", "--runtime", run.runtime, "--network", "none", "quark-test", "sh", "-c", "tty; ls -l $(tty)")


@case("--cidfile", "the ID in a file", "[0-9a-f]{64}")
def _(run):
    path = os.path.join(run.work, run.name())
    run.run("--cidfile", path, script="true")
    return open(path).read()


@case("--label", "a label", "v")
def _(run):
    return run.inspect(run.start("--label", "a=v"), ".Config.Labels.a")


@case("--stop-signal", "another signal to stop by", "5")
def _(run):
    name = run.started("--stop-signal", "USR1", script="trap 'exit 5' USR1; echo up; while :; do sleep 0.1; done")
    run.ask("stop", name)
    return run.inspect(name, ".State.ExitCode")


@case("--stop-timeout", "KILL after it", "137")
def _(run):
    name = run.started("--stop-timeout", "1", script="trap '' TERM; echo up; while :; do sleep 0.1; done")
    run.ask("stop", name)
    return run.inspect(name, ".State.ExitCode")


@case("--restart", "on-failure:2", "2")
def _(run):
    name = run.start("--restart", "on-failure:2", script="exit 4")
    run.soon(lambda: run.inspect(name, ".State.Status"), "exited", 20)
    return run.inspect(name, ".RestartCount")


@case("--health-cmd", "healthy after it", "healthy")
def _(run):
    name = run.start("--health-cmd", "test -e /tmp/ok", "--health-interval", "300ms", script="touch /tmp/ok; sleep 60")
    return run.soon(lambda: run.inspect(name, ".State.Health.Status"), "healthy")


# ---------------------------------------------------------------------------------------------------------------------------------------
group("Files")


@case("-v", "a directory, written to", "data")
def _(run):
    host = directory_of(run)
    run.run("-v", f"{host}:/v", script="echo data > /v/file")
    return open(f"{host}/file").read().strip()


@case("-v", "read-only", ".*Read-only file system.*")
def _(run):
    return run.run("-v", f"{directory_of(run)}:/v:ro", script="touch /v/x")


@case("-v", "one file", "data")
def _(run):
    return run.run("-v", f"{file_of(run, 'f', 'data')}:/etc/one", script="cat /etc/one")


@case("-v", "a named volume, filled from the image, over two containers", "hello from the guest\nmore")
def _(run):
    volume = run.name()
    try:
        run.run("-v", f"{volume}:/www", script="echo more >> /www/index.html")
        return run.run("-v", f"{volume}:/data", script="cat /data/index.html")
    finally:
        run.docker("volume", "rm", volume)


@case("-v", "propagation: a mount of the host's comes in (rslave)", "inside", missing="mounts that the host makes later do not come in; the log says so")
def _(run):
    host = directory_of(run)
    os.mkdir(f"{host}/sub")
    os.system(f"mount -t tmpfs none {host} && mkdir {host}/sub && mount --make-shared {host}")
    try:
        name = run.start("-v", f"{host}:/v:rslave")
        os.system(f"mount -t tmpfs none {host}/sub && echo inside > {host}/sub/f")
        return run.docker("exec", name, "cat", "/v/sub/f")[1]
    finally:
        os.system(f"umount -l {host}/sub; umount -l {host}")


@case("--mount", "type=bind, read-only", ".*Read-only file system.*")
def _(run):
    return run.run("--mount", f"type=bind,src={directory_of(run)},dst=/v,readonly", script="touch /v/x")


simple("--mount", "type=tmpfs with size and mode", ["--mount", "type=tmpfs,dst=/t,tmpfs-size=1m,tmpfs-mode=1770"],
       "stat -c %a /t; dd if=/dev/zero of=/t/f bs=64k count=32 2>&1 | grep -o 'No space left'", "1770\nNo space left")
simple("--tmpfs", "with options", ["--tmpfs", "/t:size=1m,noexec,mode=700"], "grep ' /t ' /proc/mounts | grep -o noexec; stat -c %a /t", "noexec\n700")
simple("--read-only", "the root", ["--read-only"], "touch /x", ".*Read-only file system.*")


@case("--read-only", "with a volume and a tmpfs at new places", "a")
def _(run):
    return run.run("--read-only", "-v", f"{directory_of(run)}:/new/v", "--tmpfs", "/new/t", script="echo a > /new/v/f && cp /new/v/f /new/t && cat /new/t/f")


@case("--volumes-from", "another container's", "data")
def _(run):
    name = run.started("-v", "/v", script="echo data > /v/f; echo up; sleep 60")
    return run.run("--volumes-from", name, script="cat /v/f")


simple("--shm-size", "of /dev/shm", ["--shm-size", "3m"], "df -k /dev/shm | tail -1 | awk '{print $2}'", "3072")
simple("--storage-opt", "a size of the root, which needs xfs with quotas", ["--storage-opt", "size=1G"], "true", "")


@case("docker cp", "into and out of a running container", "data")
def _(run):
    name = run.start()
    run.ask("cp", file_of(run, "f", "data"), f"{name}:/tmp/in")
    run.ask("exec", name, "cp", "/tmp/in", "/tmp/out")
    back = os.path.join(run.work, run.name())
    run.ask("cp", f"{name}:/tmp/out", back)
    return open(back).read()


@case("docker diff", "what a program changed", ".*A /tmp/new.*")
def _(run):
    name = run.started(script="touch /tmp/new; echo up; sleep 60")
    return run.ask("diff", name)


@case("docker commit", "an image of what it did, run", "data")
def _(run):
    name = run.started(script="echo data > /root/f; echo up; sleep 60")
    image = f"{name}-image"
    run.ask("commit", name, image)
    try:
        return run.run(script="cat /root/f", image=image)
    finally:
        run.docker("rmi", image)


@case("docker build", "a RUN step (by the daemon's default runtime)", ".*built.*")
def _(run):
    where = directory_of(run)
    with open(f"{where}/Dockerfile", "w") as f:
        f.write("FROM quark-test\nCOPY Dockerfile /tmp/\nCMD echo built\n")
    image = f"{run.name()}-image"
    code, output = run.docker("build", "-t", image, where)
    if code:
        return output
    try:
        return run.ask("run", "--rm", "--runtime", run.runtime, "--network", "none", image)
    finally:
        run.docker("rmi", image)


# ---------------------------------------------------------------------------------------------------------------------------------------
group("Network")


def get(port, path="/"):
    """What an HTTP server on this host answers, once it listens."""
    end = time.monotonic() + 15
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                s.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                text = b"".join(iter(lambda: s.recv(4096), b"")).decode()
                if text:
                    return text.split("\r\n\r\n", 1)[-1].strip()
        except OSError:
            pass
        if time.monotonic() > end:
            return "no answer"
        time.sleep(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


@case("-p", "a published port", "hello from the guest")
def _(run):
    port = free_port()
    run.start("-p", f"{port}:8080", script="exec httpd -f -p 8080 -h /www", net=None)
    return get(port)


@case("-P", "published by --expose", "hello from the guest")
def _(run):
    name = run.start("-P", "--expose", "8080", script="exec httpd -f -p 8080 -h /www", net=None)
    return get(int(run.ask("port", name, "8080").splitlines()[0].rsplit(":", 1)[1]))


simple("--network", "none: loopback alone", [], "ip -o link | awk '{print $2}'", "lo:")
simple("--network", "host: the host's own devices", [], "ip -o link | grep -c ': docker0:'", "1", net="host")


@case("--network", "a bridge of the user's, names of containers by Docker's DNS", "hello from the guest")
def _(run):
    with run.network() as net:
        server = run.start(script="exec httpd -f -p 8080 -h /www", net=net)
        return run.run(script=f"for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://{server}:8080/ && break; sleep 0.3; done", net=net)


@case("--network", "container: another one's", "hello from the guest")
def _(run):
    server = run.start(script="exec httpd -f -p 8080 -h /www", net=None)
    return run.run(script="for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://127.0.0.1:8080/ && break; sleep 0.3; done", net=f"container:{server}")


@case("--network-alias", "a second name", "hello from the guest")
def _(run):
    with run.network() as net:
        run.start("--network-alias", "web", script="exec httpd -f -p 8080 -h /www", net=net)
        return run.run(script="for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://web:8080/ && break; sleep 0.3; done", net=net)


@case("--link", "another container by name", "hello from the guest")
def _(run):
    server = run.start(script="exec httpd -f -p 8080 -h /www", net=None)
    return run.run("--link", f"{server}:web", script="for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://web:8080/ && break; sleep 0.3; done", net=None)


@case("--ip", "an address", "172.31.7.9")
def _(run):
    subnet = "172.31.7" if run.runtime == "runc" else "172.31.8"
    with run.network("--subnet", f"{subnet}.0/24") as net:
        address = run.run("--ip", f"{subnet}.9", script="ip -4 -o addr show eth0 | awk '{print $4}' | cut -d/ -f1", net=net)
        return address.replace(f"{subnet}.", "172.31.7.")


simple("--mac-address", "of eth0", ["--mac-address", "02:42:ac:11:00:99"], "cat /sys/class/net/eth0/address", "02:42:ac:11:00:99", net=None)
simple("--dns", "servers, search domains and options", ["--dns", "192.0.2.1", "--dns-search", "example", "--dns-option", "ndots:2"],
       "grep -v '^#' /etc/resolv.conf | sort", "(?s)nameserver 192.0.2.1\noptions.*ndots:2.*search example", net=None)
simple("--add-host", "a line of /etc/hosts", ["--add-host", "web:192.0.2.7"], "grep web /etc/hosts", r"192.0.2.7\s+web", net=None)
simple("--sysctl", "of the network namespace", ["--sysctl", "net.core.somaxconn=999"], "cat /proc/sys/net/core/somaxconn", "999")
simple("--sysctl", "of the IPC namespace", ["--sysctl", "kernel.shmmax=123456"], "cat /proc/sys/kernel/shmmax", "123456")


@case("docker network connect", "a second network while it runs", "eth1")
def _(run):
    with run.network() as net:
        name = run.start(net=None)
        run.ask("network", "connect", net, name)
        return run.docker("exec", name, "sh", "-c", "ls /sys/class/net | grep eth1")[1]


# ---------------------------------------------------------------------------------------------------------------------------------------
group("Resources")
simple("-m", "a limit, and what the program sees of it", ["-m", "64m"],
       "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max", "67108864")
simple("-m", "8 MiB", ["-m", "8m"], "echo alive", "alive")


@case("-m", "one that uses it up is killed, and the engine knows why", "137 true")
def _(run):
    name = run.start("-m", "64m", script="tail /dev/zero")
    run.soon(lambda: run.inspect(name, ".State.Status"), "exited", 30)
    return run.soon(lambda: run.inspect(name, ".State.ExitCode") + " " + run.inspect(name, ".State.OOMKilled"), "137 true", 5)


simple("--memory-swap", "with -m", ["-m", "64m", "--memory-swap", "128m"], "echo alive", "(WARNING.*\n)?alive")
simple("--memory-reservation", "a soft limit", ["--memory-reservation", "32m"], "echo alive", "alive")
simple("--memory-swappiness", "0", ["--memory-swappiness", "0"], "echo alive", "alive")
simple("--kernel-memory", "a limit (Docker calls it deprecated)", ["--kernel-memory", "64m"], "echo alive", "(WARNING.*\n)?alive")
simple("--oom-score-adj", "and what the program sees of it", ["--oom-score-adj", "500"], "cat /proc/self/oom_score_adj", "500")
simple("--oom-kill-disable", "with a limit", ["--oom-kill-disable", "-m", "64m"], "echo alive", "(WARNING.*\n)?alive")
simple("--cpus", "half of one", ["--cpus", "0.5"], "echo alive", "alive")
simple("--cpu-shares", "a weight", ["--cpu-shares", "512"], "echo alive", "alive")
simple("--cpu-period", "and quota", ["--cpu-period", "50000", "--cpu-quota", "25000"], "echo alive", "alive")
simple("--cpuset-cpus", "one of them", ["--cpuset-cpus", "0"], "nproc; grep -c ^processor /proc/cpuinfo", "1\n[0-9]+")
simple("--cpuset-mems", "node 0", ["--cpuset-mems", "0"], "echo alive", "alive")
simple("--cpu-rt-runtime", "which needs a kernel with RT groups", ["--cpu-rt-runtime", "1000"], "echo alive", "alive")
simple("--blkio-weight", "of block I/O", ["--blkio-weight", "500"], "echo alive", "(WARNING.*\n)?alive")
simple("--device-read-bps", "of a disk", ["--device-read-bps", "/dev/vda:1mb"], "echo alive", "alive")
simple("--pids-limit", "fork fails at it", ["--pids-limit", "20"],
       "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 2 & done 2>&1 | grep -m1 -o \"can't fork\"", "can't fork")
simple("--ulimit", "nofile", ["--ulimit", "nofile=123:456"], "ulimit -Sn; ulimit -Hn", "123\n456")
simple("--ulimit", "core and nproc", ["--ulimit", "core=0", "--ulimit", "nproc=77"], "ulimit -c; grep processes /proc/self/limits | awk '{print $3}'", "0\n77")
simple("--cgroup-parent", "a parent", ["--cgroup-parent", "/quark-matrix"], "echo alive", "alive")


@case("docker update", "memory, up and down", "134217728 67108864")
def _(run):
    name = run.start("-m", "100m", "--memory-swap", "-1")
    def limit():
        return run.ask("exec", name, "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
    run.ask("update", "-m", "128m", "--memory-swap", "-1", name)
    up = limit()
    run.ask("update", "-m", "64m", "--memory-swap", "-1", name)
    return f"{up} {limit()}"


@case("docker update", "--cpus and --pids-limit", "")
def _(run):
    name = run.start()
    run.ask("update", "--cpus", "0.5", "--pids-limit", "50", name)
    return ""


@case("docker stats", "memory and processes", r"[0-9.]+[KMG]iB / .* [1-9][0-9]*")
def _(run):
    return run.ask("stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", run.start())


# ---------------------------------------------------------------------------------------------------------------------------------------
group("Namespaces and security")
CAPS = "grep CapEff /proc/self/status | awk '{print $2}'"
simple("--cap-drop", "all", ["--cap-drop", "ALL"], CAPS, "0{16}")
simple("--cap-add", "SYS_TIME", ["--cap-drop", "ALL", "--cap-add", "SYS_TIME"], CAPS, "0000000002000000")
simple("--cap-add", "NET_ADMIN configures its own network", ["--cap-add", "NET_ADMIN"], "ip addr add 10.9.8.7/24 dev lo && ip -o -4 addr show lo | grep -o 10.9.8.7", "10.9.8.7")
simple("--privileged", "in full", ["--privileged"], CAPS, "0+[0-9a-f]+")
simple("--security-opt", "no-new-privileges", ["--security-opt", "no-new-privileges"], "grep NoNewPrivs /proc/self/status | awk '{print $2}'", "1")
simple("--security-opt", "seccomp=unconfined", ["--security-opt", "seccomp=unconfined"], "grep Seccomp: /proc/self/status | awk '{print $2}'", "0")


@case("--security-opt", "a seccomp profile of the user's", ".*Operation not permitted.*")
def _(run):
    profile = file_of(run, "profile.json", '{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}')
    return run.run("--security-opt", f"seccomp={profile}", script="mkdir /tmp/x")


simple("--security-opt", "apparmor=unconfined", ["--security-opt", "apparmor=unconfined"], "echo alive", "alive")
simple("--security-opt", "systempaths=unconfined", ["--security-opt", "systempaths=unconfined"], "test -r /proc/kcore -o -e /proc/timer_list; echo alive", "alive")
simple("--device", "/dev/null under another name", ["--device", "/dev/null:/dev/mynull"], "echo x > /dev/mynull; cat /dev/mynull | wc -c", "0")
simple("--device", "/dev/loop-control, a driver of the host's", ["--device", "/dev/loop-control"], "ls /dev/loop-control", "/dev/loop-control",
       refused=True)
simple("--device", "with permissions", ["--device", "/dev/zero:/dev/z:r"], "head -c 3 /dev/z | wc -c; stat -c '%F %t:%T' /dev/z", "3\ncharacter special file 1:5")
simple("--device-cgroup-rule", "a rule", ["--device-cgroup-rule", "c 1:3 rwm"], "echo alive", "alive")
simple("--pid", "host", ["--pid", "host"], "test $(ls -d /proc/[0-9]* | wc -l) -gt 5 && echo many", "many", refused=True)


@case("--pid", "container: another one's", "2", refused=True)
def _(run):
    other = run.start()
    return run.run("--pid", f"container:{other}", script="ls -d /proc/1 /proc/self | wc -l")


simple("--ipc", "private", ["--ipc", "private"], "ls -d /dev/shm", "/dev/shm")
simple("--ipc", "none", ["--ipc", "none"], "ls -d /dev/shm 2>/dev/null; echo end", "end")
@case("--ipc", "host: files in the host's /dev/shm", "data")
def _(run):
    name = run.name()
    with open(f"/dev/shm/{name}", "w") as f:
        f.write("data")
    try:
        return run.run("--ipc", "host", script=f"cat /dev/shm/{name}")
    finally:
        os.unlink(f"/dev/shm/{name}")




@case("--ipc", "container: files in /dev/shm of another one's", "data", refused=True)
def _(run):
    other = run.started("--ipc", "shareable", script="echo data > /dev/shm/f; echo up; sleep 60")
    return run.run("--ipc", f"container:{other}", script="cat /dev/shm/f")


simple("--uts", "host: its name", ["--uts", "host"], "hostname", re.escape(os.uname().nodename))
simple("--userns", "host", ["--userns", "host"], "cat /proc/self/uid_map | awk '{print $1, $2}'", "0 0")
simple("--cgroupns", "private", ["--cgroupns", "private"], "echo alive", "alive")
simple("--log-driver", "none", ["--log-driver", "none"], "echo alive", "alive")

# ---------------------------------------------------------------------------------------------------------------------------------------
group("Commands on a running container")


@case("docker exec", "a program, its exit code", "42 9")
def _(run):
    name = run.start()
    code, output = run.docker("exec", name, "sh", "-c", "echo 42; exit 9")
    return f"{output} {code}"


@case("docker exec -i", "standard input", "3")
def _(run):
    return run.ask("exec", "-i", run.start(), "wc", "-c", input="abc")


@case("docker exec -t", "a terminal", "/dev/pts/[0-9]+")
def _(run):
    return run.ask("exec", "-t", run.start(), "tty")


@case("docker exec -u -w -e", "another user, directory, variable", "1000 /www v")
def _(run):
    return run.ask("exec", "-u", "app", "-w", "/www", "-e", "A=v", run.start(), "sh", "-c", "echo $(id -u) $PWD $A")


@case("docker exec -d", "in the background", "done")
def _(run):
    name = run.start()
    run.ask("exec", "-d", name, "sh", "-c", "echo done > /tmp/f")
    return run.soon(lambda: run.docker("exec", name, "cat", "/tmp/f")[1], "done")


@case("docker exec --privileged", "more capabilities than its container has", "[1-9a-f0-9]*[1-9a-f]+[0-9a-f]*")
def _(run):
    return run.ask("exec", "--privileged", run.start("--cap-drop", "ALL"), "sh", "-c", CAPS).lstrip("0")


@case("docker exec", "of a missing program is 126 or 127", "12[67]")
def _(run):
    return str(run.docker("exec", run.start(), "no-such")[0])


@case("docker top", "names of its programs", ".*sleep.*")
def _(run):
    return run.ask("top", run.start(script="sleep 77 & wait"))


@case("docker logs", "both streams, since the beginning", "err\nout")
def _(run):
    name = run.start(script="echo out; echo err >&2")
    run.soon(lambda: run.inspect(name, ".State.Status"), "exited")
    return "\n".join(sorted(run.ask("logs", name).split()))


@case("docker attach", "sees what comes", ".*tick.*")
def _(run):
    name = run.start(script="for i in 1 2 3 4 5 6 7 8; do echo tick; sleep 0.2; done")
    return run.ask("attach", "--no-stdin", name)


@case("docker pause", "and unpause", "paused running")
def _(run):
    name = run.start()
    run.ask("pause", name)
    first = run.inspect(name, ".State.Status")
    run.ask("unpause", name)
    return f"{first} {run.inspect(name, '.State.Status')}"


@case("docker kill -s", "a signal to process 1", "6")
def _(run):
    name = run.started(script="trap 'exit 6' USR2; echo up; while :; do sleep 0.1; done")
    run.ask("kill", "-s", "USR2", name)
    run.soon(lambda: run.inspect(name, ".State.Status"), "exited")
    return run.inspect(name, ".State.ExitCode")


@case("docker stop", "and start again", "exited 3 running")
def _(run):
    name = run.started(script="trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done")
    run.ask("stop", name)
    first = run.inspect(name, ".State.Status") + " " + run.inspect(name, ".State.ExitCode")
    run.ask("start", name)
    return f"{first} {run.inspect(name, '.State.Status')}"


@case("docker restart", "a new life", "running")
def _(run):
    name = run.start()
    run.ask("restart", "-t", "1", name)
    return run.inspect(name, ".State.Status")


@case("docker wait", "the exit code", "7")
def _(run):
    return run.ask("wait", run.start(script="sleep 0.3; exit 7"))


@case("docker rename", "while it runs", "running")
def _(run):
    name = run.start()
    run.containers.append(f"{name}-new")
    run.ask("rename", name, f"{name}-new")
    return run.inspect(f"{name}-new", ".State.Status")


@case("docker export", "its files", "hello from the guest")
def _(run):
    path = os.path.join(run.work, run.name())
    run.ask("export", "-o", path, run.start())
    return os.popen(f"tar -xOf {path} www/index.html").read().strip()


@case("docker rm -f", "while it runs", ".*[Nn]o such object.*")
def _(run):
    name = run.start()
    run.ask("rm", "-f", name)
    return run.docker("inspect", "-f", "{{.State.Status}}", name)[1]


@case("docker events", "of a life", "create start die destroy")
def _(run):
    name, begin = run.name(), str(time.time() - 1)
    run.ask("run", "--rm", "--name", name, "--runtime", run.runtime, "--network", "none", "quark-test", "true")
    text = run.ask("events", "--since", begin, "--until", str(time.time() + 1), "--filter", f"container={name}", "--format", "{{.Action}}")
    return " ".join(word for word in re.sub(r"\s+", " ", text).split() if word in ("create", "start", "die", "destroy"))


@case("docker checkpoint create", "which needs an experimental daemon", "", refused=True)
def _(run):
    code, output = run.docker("checkpoint", "create", run.start(), "c1")
    if code:
        run.refuse(output)
    return ""
