"""What goes into a root file system: Debian or busybox, packages, dependencies of languages; and what is taken out again."""
import os
import re
import shutil
import subprocess

from description import Wrong
from steps import APART, remove

# Things a running container does not read.
TRIMMED = ["var/lib/apt/lists", "var/cache/apt", "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/i18n", "usr/share/lintian",
           "usr/share/bug", "tmp", "var/tmp"]
# Programs need the directories here: packages put their logs into them, and dpkg links to pages that are not there.
EMPTIED = ["var/log", "usr/share/man"]
TRANSLATED = "usr/share/man"
REMOVED = ["debootstrap", "etc/resolv.conf", "etc/hostname", "var/lib/dpkg/status-old", "var/lib/dpkg/diversions-old",
           "var/cache/ldconfig/aux-cache", "var/cache/debconf/templates.dat-old", "var/cache/debconf/config.dat-old"]
# Mount points, for roots that are not writable.
MOUNT_POINTS = ["mnt/apps", "mnt/functions", "mnt/bench"]

# Nothing is kept of a root that is not whole, so no file need be on the disk before the next.
APT = ["apt-get", "-q", "-y", "-o", "APT::Install-Recommends=false", "-o", "DPkg::Options::=--force-unsafe-io"]
# What it needs in the root, its program, the package that brings it, how it installs, and where to.
TOOLS = {
    "pip": ("python3", "pip3", "python3-pip", 'pip3 install --no-cache-dir --break-system-packages --root-user-action=ignore "$@"', "/usr/local"),
    # Programs find modules in /node_modules from wherever they lie. npm itself does not work there (it ends with "Tracker already exists").
    "npm": ("node", "npm", "npm", """mkdir -p /node_modules /root/npm
if [ "$(ls /node_modules)" ]; then cp -a /node_modules /root/npm/; fi
npm install --prefix /root/npm --no-save --no-package-lock --omit=dev "$@"
rm -rf /node_modules
mv /root/npm/node_modules /""", "/node_modules"),
}


def release():
    """The Debian release of this machine, such as bookworm."""
    with open("/etc/os-release", encoding="utf-8") as f:
        values = dict(line.rstrip("\n").split("=", 1) for line in f if "=" in line)
    return values.get("VERSION_CODENAME", "").strip('"')


def busybox():
    path = shutil.which("busybox")
    if not path:
        raise Wrong("busybox is not installed (apt package busybox-static)")
    return os.path.realpath(path)


def make_debian(root, log):
    """Debian's smallest system, from the mirror that the machine's own apt uses: the first "main" component of the base suite."""
    form = "$(CREATED_BY) $(REPO_URI) $(RELEASE) $(COMPONENT)"
    try:
        lines = subprocess.run(["apt-get", "indextargets", "--format", form], capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        lines = []
    suite = release()
    mirror = next((w[1] for w in map(str.split, lines) if len(w) == 4 and [w[0], w[2], w[3]] == ["Packages", suite, "main"]), None)
    if not mirror:
        raise Wrong("apt on this machine has no Debian base suite configured; add one to /etc/apt/sources.list")
    with log.step(f"debootstrap {suite} (log: {log.path})"):
        log.run("debootstrap", [*APART, "--mount-proc", "debootstrap", "--variant=minbase", suite, root, mirror])
    with open(root + "/etc/hosts", "w") as f:
        f.write("127.0.0.1 localhost\n")


def make_busybox(root, log):
    with log.step("busybox"):
        for directory in "bin dev etc proc root sys tmp usr/bin var".split():
            os.makedirs(f"{root}/{directory}")
        os.chmod(root + "/tmp", 0o1777)
        shutil.copy(busybox(), root + "/bin/busybox")
        applets = subprocess.run([busybox(), "--list"], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
        for applet in set(applets) - {"busybox"}:
            os.symlink("busybox", f"{root}/bin/{applet}")
        for file, text in (("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")):
            with open(f"{root}/etc/{file}", "w") as f:
                f.write(text)


def install(steps, packages, pip, npm):
    """Packages by apt, and dependencies by pip and npm. What installs the last two is there only while they need it."""
    # No service starts in here, and none is asked anything.
    policy = steps.root + "/usr/sbin/policy-rc.d"
    with open(policy, "w") as f:
        f.write("#!/bin/sh\nexit 101\n")
    os.chmod(policy, 0o755)
    with steps.log.step("apt-get update"):
        steps.run("apt-get update", *APT, "update")
    if packages:
        with steps.log.step("apt-get install " + short(packages)):
            steps.run("apt-get install", *APT, "install", *packages)
    for tool, (needs, program, helper, command, place) in TOOLS.items():
        wanted = {"pip": pip, "npm": npm}[tool]
        if not wanted:
            continue
        if not os.path.exists(f"{steps.root}/usr/bin/{needs}"):
            raise Wrong(f"{steps.log.name}: dependencies: the root has no {needs}: add {needs.replace('node', 'nodejs')} to packages")
        lasting = os.path.exists(f"{steps.root}/usr/bin/{program}")
        script = ("" if lasting else " ".join(APT) + f" install {helper}\n") + command
        with steps.log.step(f"{tool} install " + short(wanted) + ("" if lasting else f", with {helper} for this only")):
            steps.run(f"{tool} install", "sh", "-ec", script, "sh", *wanted, taken=place)
    remove(policy)


def short(words):
    text = " ".join(words)
    return text if len(text) < 100 else f"{text[:90]} … ({len(words)})"


def finish(steps, code=()):
    """Writes byte code once, as a read-only root would compile at every start, and takes out what nothing reads."""
    root = steps.root
    if os.path.exists(root + "/usr/bin/python3"):
        with steps.log.step("byte code of Python"):
            script = 'python3 -m compileall -q /usr/lib/python3 /usr/lib/python3.* /usr/local/lib/python3* "$@" >/dev/null 2>&1 || true'
            steps.run("compileall", "sh", "-c", script, "sh", *code)
    if os.path.exists(root + "/usr/bin/apt-get"):
        steps.run("apt-get clean", "apt-get", "clean")
    for directory in TRIMMED:
        if os.path.isdir(f"{root}/{directory}"):
            for name in os.listdir(f"{root}/{directory}"):
                remove(f"{root}/{directory}/{name}")
    if os.path.isdir(f"{root}/{TRANSLATED}"):
        for name in os.listdir(f"{root}/{TRANSLATED}"):
            if not re.fullmatch("man[0-9]", name):
                remove(f"{root}/{TRANSLATED}/{name}")
    for directory in EMPTIED:
        for place, _, files in os.walk(f"{root}/{directory}"):
            for name in files:
                os.unlink(os.path.join(place, name))
    for name in REMOVED:
        remove(f"{root}/{name}")
    for directory in MOUNT_POINTS:
        os.makedirs(f"{root}/{directory}", exist_ok=True)
