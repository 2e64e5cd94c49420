#!/usr/bin/python3
"""Runs critest, the conformance tests of Kubernetes' container runtime interface, against a containerd of its own, once
with runc and once with quark, and compares: what runc passes, quark passes, but for what `exceptions.txt` names with its
reason. Prints a line for each case that differs, and a summary; fails if there is one that is not excepted, or one
excepted that passes.

  test-apps/containerd/cri/run.py [--quark QUARK] [--focus REGEX] [--only runc|quark] [--pods separate|shared]

Needs root, and what `scripts/setup.sh cri` installs; everything else is made below target/critest."""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

import images

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
STATE = REPOSITORY / "target/critest"
VERSION = "v1.34.0"
LIMIT_S = 1500
# What is not of the runtime: pulling images is containerd's own, and one is asked for by the digest of somebody's build.
NOT_OF_RUNTIMES = "Image Manager|benchmark"

CNI = """{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "promiscMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""

CONFIG = """version = 2
root = "{work}/root"
state = "{work}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{work}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.k8s.io/pause:3.10"
enable_unprivileged_ports = true
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{work}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{runtime}"
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.quark]
runtime_type = "io.containerd.quark.v1"
pod_annotations = ["io.quark.*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.quark.options]
TypeUrl = "io.containerd.quark.v1.options"
ConfigPath = "{work}/quark.toml"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."registry.k8s.io"]
endpoint = ["{registry}"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."gcr.io"]
endpoint = ["{registry}"]
"""


def critest():
    """The program, built once from its Go module."""
    program = STATE / f"critest-{VERSION}"
    if not program.exists():
        module = subprocess.run(["go", "mod", "download", "-json", f"sigs.k8s.io/cri-tools@{VERSION}"], cwd="/",
                                stdout=subprocess.PIPE, check=True, text=True).stdout
        source = STATE / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(json.loads(module)["Dir"], source)
        subprocess.run(["chmod", "-R", "u+w", source], check=True)
        subprocess.run(["go", "test", "-mod=mod", "-c", "-o", program, "./cmd/critest"], cwd=source, check=True)
    return program


def start_containerd(work, path):
    log = open(work / "containerd.log", "ab")
    daemon = subprocess.Popen(["containerd", "--config", work / "config.toml"], stdout=log, stderr=log,
                              env=os.environ | {"PATH": path})
    for _ in range(150):
        if subprocess.run(["ctr", "-a", work / "c.sock", "version"], capture_output=True).returncode == 0:
            return daemon
        time.sleep(0.1)
    sys.exit((work / "containerd.log").read_text()[-2000:])


def clean(work):
    """Ends what a run has left: its shims, by the socket among their arguments, and mounts."""
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes()
        except OSError:
            continue
        if str(work).encode() in arguments and int(file.parent.name) != os.getpid():
            os.kill(int(file.parent.name), signal.SIGKILL)
    for line in reversed(open("/proc/self/mountinfo").readlines()):
        if line.split()[4].startswith(str(work)):
            subprocess.run(["umount", "-l", line.split()[4]])


def results(report):
    """Case names and whether they passed, of those that ran."""
    found = {}
    for case in xml.parse(report).iter("testcase"):
        name = case.get("name")
        if not name.startswith("[It]") or case.find("skipped") is not None:
            continue
        found[name.removeprefix("[It] ")] = case.find("failure") is None and case.find("error") is None
    return found


def run(runtime, registry, options):
    """One run of all cases with one runtime, in a network and a mount namespace of its own (this process')."""
    work = pathlib.Path(tempfile.mkdtemp(prefix=f"quark-critest-{runtime}."))
    (work / "cni").mkdir()
    (work / "cni/10-pods.conflist").write_text(CNI)
    (work / "quark.toml").write_text(f'Root = "{work}/quark"\nArguments = ["--pod={options.pods}"]\n')
    (work / "config.toml").write_text(CONFIG.format(work=work, runtime=runtime, registry=registry.url))
    path = f"{options.quark.parent}:{os.environ['PATH']}"
    report = STATE / f"{runtime}.xml"
    report.unlink(missing_ok=True)
    daemon = start_containerd(work, path)
    try:
        command = [critest(), f"--runtime-endpoint=unix://{work}/c.sock", f"--ginkgo.junit-report={report}", "--ginkgo.no-color",
                   f"--ginkgo.skip={NOT_OF_RUNTIMES}", "--ginkgo.seed=1"]
        command += [f"--ginkgo.focus={options.focus}"] if options.focus else []
        with open(STATE / f"{runtime}.log", "wb") as log:
            subprocess.run(command, stdout=log, stderr=log, timeout=LIMIT_S, cwd=work)
        return results(report)
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.copy(work / "containerd.log", STATE / f"{runtime}-containerd.log")
        clean(work)
        shutil.rmtree(work, ignore_errors=True)


def exceptions():
    found = {}
    for line in (HERE / "exceptions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, reason = line.split(" ::: ")
            found[name] = reason
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", type=lambda p: pathlib.Path(p).resolve(), default=REPOSITORY / "target/release/quark")
    parser.add_argument("--focus")
    parser.add_argument("--only", choices=["runc", "quark"])
    parser.add_argument("--pods", choices=["separate", "shared"], default="separate",
                        help="whether containers of a pod share one guest kernel")
    options = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    # While there is a network that leads somewhere.
    roots = [subprocess.run([REPOSITORY / "rootfs/image.py", "root", name], stdout=subprocess.PIPE, check=True, text=True)
             .stdout.strip() for name in ("busybox", "nginx")]
    critest()
    if "QUARK_CRITEST" not in os.environ:
        os.environ["QUARK_CRITEST"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", sys.executable] + sys.argv)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    pathlib.Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")
    registry = images.Registry()
    with tempfile.TemporaryDirectory() as work:
        images.fill(registry, work, *roots)
    runtimes = [options.only] if options.only else ["runc", "quark"]
    found = {runtime: run(runtime, registry, options) for runtime in runtimes}
    for runtime, cases in found.items():
        print(f"{runtime}: {sum(cases.values())} of {len(cases)} passed")
    if options.only:
        for name, passed in sorted(found[options.only].items()):
            print("ok    " if passed else "not ok", name)
        return
    excepted, wrong = exceptions(), 0
    for name, passed in sorted(found["quark"].items()):
        if passed == found["runc"].get(name, False):
            if passed and name in excepted:
                print(f"passes, though excepted: {name}")
                wrong += 1
        elif passed:
            print(f"quark alone passes: {name}")
        elif name in excepted:
            print(f"excepted: {name}: {excepted[name]}")
        else:
            print(f"runc alone passes: {name}")
            wrong += 1
    missing = [name for name, passed in found["runc"].items() if passed and name not in found["quark"]]
    for name in missing:
        print(f"runc alone has run: {name}")
    sys.exit(1 if wrong + len(missing) else 0)


if __name__ == "__main__":
    main()
