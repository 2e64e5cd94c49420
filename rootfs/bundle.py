#!/usr/bin/python3
"""Writes an OCI bundle: a config.json as `runc spec` would give it, over a root file system made by image.py.

    rootfs/bundle.py --rootfs target/rootfs/busybox --out target/bundles/true -- /bin/true

Also a module for the benchmarks and the demo: `bundle.write(...)`.
"""
import argparse
import json
import os
import sys

CAPABILITIES = ["CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
                "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT"]
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=xterm"]

CPU_PERIOD_US = 100_000


def mount(destination, fstype, source, *options):
    return {"destination": destination, "type": fstype, "source": source, "options": list(options)}


def config(rootfs, args, env=(), cwd="/", binds=(), readonly=False, terminal=False, hostname="quark", network="host",
           cgroup_path=None, memory_bytes=None, uid=0, gid=0, groups=(), descriptors=1024,
           annotations=(), no_new_privileges=True, cpus=None, pids=None):
    """The configuration. `binds` are (source, destination, "ro" or "rw"); `network` is "host", "new" or the path of a
    network namespace; `memory_bytes`, `cpus` and `pids` are the cgroup's limits; `env` are NAME=value, of which the last one counts; `groups` are additional ones; `descriptors` is RLIMIT_NOFILE; `annotations` are
    NAME=value."""
    mounts = [
        mount("/proc", "proc", "proc"),
        mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        # sysfs of the host's network namespace may only be bound, not mounted anew.
        mount("/sys", "none", "/sys", "rbind", "nosuid", "noexec", "nodev", "ro") if network == "host" else
        mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777"),
    ]
    mounts += [mount(d, "bind", os.path.abspath(s), "rbind", mode) for s, d, mode in binds]
    namespaces = [{"type": t} for t in ("pid", "ipc", "uts", "mount")]
    if network == "new":
        namespaces.append({"type": "network"})
    elif network != "host":
        namespaces.append({"type": "network", "path": network})
    linux = {
        "namespaces": namespaces,
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        "maskedPaths": ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                        "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    }
    if cgroup_path:
        linux["cgroupsPath"] = cgroup_path
    if memory_bytes:
        linux["resources"]["memory"] = {"limit": memory_bytes}
    if cpus:
        linux["resources"]["cpu"] = {"quota": round(cpus * CPU_PERIOD_US), "period": CPU_PERIOD_US}
    if pids:
        linux["resources"]["pids"] = {"limit": pids}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": terminal,
            "user": {"uid": uid, "gid": gid, **({"additionalGids": list(groups)} if groups else {})},
            "args": list(args),
            # A program that finds a name twice takes the first.
            "env": list({e.split("=", 1)[0]: e for e in ENVIRONMENT + list(env)}.values()),
            "cwd": cwd,
            "capabilities": {s: CAPABILITIES for s in ("bounding", "effective", "permitted")},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": descriptors, "soft": descriptors}],
            "noNewPrivileges": no_new_privileges,
        },
        "root": {"path": os.path.abspath(rootfs), "readonly": readonly},
        "hostname": hostname,
        "mounts": mounts,
        "linux": linux,
        "annotations": dict(a.split("=", 1) for a in annotations),
    }


def write(out, **keywords):
    """Makes the bundle directory `out` with its config.json; gives its path."""
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "config.json")
    with open(path + ".tmp", "w") as f:
        json.dump(config(**keywords), f, indent=2)
        f.write("\n")
    os.rename(path + ".tmp", path)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rootfs", required=True, help="root file system")
    p.add_argument("--out", required=True, help="bundle directory to make")
    p.add_argument("--env", action="append", default=[], help="NAME=value, on top of PATH, HOME and TERM")
    p.add_argument("--cwd", default="/")
    p.add_argument("--bind", action="append", default=[], metavar="SOURCE:DESTINATION[:ro|rw]")
    p.add_argument("--readonly", action="store_true", help="the root may not be written")
    p.add_argument("--terminal", action="store_true")
    p.add_argument("--hostname", default="quark")
    p.add_argument("--network", default="host", help="host, new, or the path of a network namespace")
    p.add_argument("--cgroup-path")
    p.add_argument("--memory-bytes", type=int)
    p.add_argument("--user", default="0:0", help="uid:gid")
    p.add_argument("--annotation", action="append", default=[], help="NAME=value")
    p.add_argument("args", nargs="+", help="the command, after --")
    a = p.parse_args()
    binds = []
    for b in a.bind:
        parts = b.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
            sys.exit(f"bundle.py: --bind {b}: expected SOURCE:DESTINATION[:ro|rw]")
        binds.append((parts[0], parts[1], parts[2] if len(parts) == 3 else "rw"))
    uid, _, gid = a.user.partition(":")
    print(write(a.out, rootfs=a.rootfs, args=a.args, env=a.env, cwd=a.cwd, binds=binds, readonly=a.readonly,
                terminal=a.terminal, hostname=a.hostname, network=a.network, cgroup_path=a.cgroup_path,
                memory_bytes=a.memory_bytes, uid=int(uid), gid=int(gid or 0), annotations=a.annotation))


if __name__ == "__main__":
    main()
