"""Steps of making a root file system: commands in it and beside it, with one line of progress each and a log.

Each command has mount and PID namespaces of its own, which end with it: however it ends, no mount and no process of it is left.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

from description import Wrong

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
JAVA_CERTIFICATES = "/etc/ssl/certs/java/cacerts"
# Variables by which programs trust a mirror's certificate.
TRUST = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "npm_config_cafile")
PASSED = re.compile(r"(PIP|NPM_CONFIG|npm_config)_.*|GOPROXY|GOSUMDB|GONOSUMDB|GOPRIVATE|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY|"
                    + "|".join(TRUST))
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where steps have the machine's configuration: not in the root, as this is a mount.
HOME = "/mnt"
APART = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]

# enter ROOT HOME TAKEN [FROM TO]… -- COMMAND…
# With a directory TAKEN of the root the command has a layer of its own above it, of which only that directory stays. Nothing is written to the disk
# on its way (volatile): packages of many small files take minutes else.
ENTER = r"""
set -e
root=$1 below=$1 taken=$3
if [ -n "$taken" ]; then
    mkdir "$2/layer" "$2/layer/upper" "$2/layer/work" "$2/layer/root" "$2/layer/below"
    mount --bind "$below" "$2/layer/below"
    (cd "$2/layer" && mount -t overlay -o lowerdir=below,upperdir=upper,workdir=work,volatile none root)
    root=$2/layer/root
fi
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 none "$root/dev"
for node in null zero full random urandom tty; do cp -a /dev/$node "$root/dev/"; done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$2" "$root/mnt"
shift 3
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    shift 2
done
shift
if [ -z "$taken" ]; then
    exec chroot "$root" "$@"
fi
chroot "$root" "$@"
# Beside it first: what it is made of must not be taken away from under the layer.
cp -a --reflink=auto "$root$taken" "$below$taken.new"
rm -rf "$below$taken"
mv "$below$taken.new" "$below$taken"
"""


class Log:
    """Progress on standard error, and what commands say in a file. `name` is that of the description."""

    def __init__(self, name, path):
        self.name, self.path, self.fresh = name, path, True

    @contextlib.contextmanager
    def step(self, text):
        began = time.monotonic()
        print(f"image: {self.name}: {text}", end=" … ", file=sys.stderr, flush=True)
        try:
            yield
        except BaseException:
            print("failed", file=sys.stderr, flush=True)
            raise
        print(f"{time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def run(self, what, command, env=None, **more):
        """A command; `what` names it if it fails."""
        with open(self.path, "wb" if self.fresh else "ab") as log:
            self.fresh = False
            log.write(f"== {what}\n".encode())
            log.flush()
            start = log.tell()
            more.setdefault("stdin", subprocess.DEVNULL)
            try:
                status = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT, **more).returncode
            except FileNotFoundError as error:
                raise Wrong(f"{self.name}: {what}: {error.filename} is not installed (scripts/setup.sh installs what is missing)") from None
        if status != 0:
            with open(self.path, "rb") as log:
                log.seek(start)
                tail = log.read().decode(errors="replace").splitlines()[-20:]
            ended = f"signal {-status}" if status < 0 else f"exit code {status}"
            raise Failed(f"{self.name}: {what} failed ({ended}), see {self.path}", tail)


class Failed(Wrong):
    """A step that failed, with the end of its log."""

    def __init__(self, text, tail):
        super().__init__(text)
        self.tail = tail


class Steps:
    """What runs in the root `root`, logged by `log`. A context manager: the machine's configuration that the steps have is gone at its end."""

    def __init__(self, root, log):
        self.root, self.log, self.home = root, log, root + ".home"

    def __enter__(self):
        remove(self.home)
        os.mkdir(self.home, 0o755)
        self.environment = {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        self.binds = []
        for variable, value in os.environ.items():
            if PASSED.fullmatch(variable):
                self.environment[variable] = self.lend(value) if os.path.isabs(value) and os.path.exists(value) else value
        if os.path.exists(CERTIFICATES):
            lent = self.lend(CERTIFICATES)
            for variable in TRUST:
                self.environment.setdefault(variable, lent)
        if os.path.exists(JAVA_CERTIFICATES):
            self.environment["JAVA_TOOL_OPTIONS"] = f"-Djavax.net.ssl.trustStore={self.lend(JAVA_CERTIFICATES)}"
        if os.path.exists("/etc/pip.conf"):
            self.environment.setdefault("PIP_CONFIG_FILE", self.lend("/etc/pip.conf"))
        for path in ("/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"):
            if os.path.exists(path):
                self.environment.setdefault("NPM_CONFIG_GLOBALCONFIG", self.lend(path))
        for path in (".npmrc", ".config/pip/pip.conf", ".pip/pip.conf"):
            if os.path.isfile(os.path.expanduser(f"~/{path}")):
                self.lend(os.path.expanduser(f"~/{path}"), path)
        return self

    def __exit__(self, *_):
        remove(self.home)

    def lend(self, path, name=None):
        """Shows a file or directory of the machine to the steps; its path there."""
        name = name or f"lent/{len(self.binds)}{os.path.splitext(path)[1]}"
        place = os.path.join(self.home, name)
        os.makedirs(place if os.path.isdir(path) else os.path.dirname(place), exist_ok=True)
        if not os.path.isdir(path):
            open(place, "x").close()
        self.binds += [path, f"{HOME}/{name}"]
        return f"{HOME}/{name}"

    def run(self, what, *command, taken=""):
        """A command in the root, with the machine's network. With `taken`, a directory, nothing else of what it does stays."""
        binds = list(self.binds)
        os.makedirs(self.root + "/mnt", exist_ok=True)
        names = self.root + "/etc/resolv.conf"
        if os.path.exists("/etc/resolv.conf"):
            if os.path.lexists(names):
                os.unlink(names)
            open(names, "x").close()
            binds += ["/etc/resolv.conf", "/etc/resolv.conf"]
        try:
            self.log.run(what, [*APART, "sh", "-c", ENTER, "sh", self.root, self.home, taken, *binds, "--", *command], self.environment)
        finally:
            if os.path.lexists(names):
                os.unlink(names)

    def shell(self, what, script):
        self.run(what, "/bin/sh", "-ec", script)


def mounts_below(path):
    """Mount points in and below a directory, the innermost first."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            place = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
            if place == path or place.startswith(path + "/"):
                found.append(place)
    return sorted(found, reverse=True)


def remove(path):
    """Removes a directory or file with all below it, and never what is mounted there."""
    for place in mounts_below(os.path.realpath(path)):
        subprocess.run(["umount", "-l", place], check=True)
    for last in (False, False, True):
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif os.path.lexists(path):
                os.unlink(path)
            return
        except OSError:
            # A process that was just killed may still have written.
            if last:
                raise
            time.sleep(0.2)
