"""Root file systems of descriptions, kept by content below target/rootfs.

    NAME, NAME.key         the root of a description, and the digest of what it was made of
    layers/KEY             Debian alone, busybox alone, or packages and dependencies under code: for all that say the same
    NAME.layers            the layers that a description uses: others that nobody names are removed
    NAME.lock, NAME.log    one maker at a time, and what its steps said

A root is made beside its place (NAME.tmp) and renamed when it is whole.
"""
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess

import debian
from description import HERE, Wrong
from steps import Log, Steps, remove

# Raise it when the same description makes another root than before.
VERSION = 1
# What other programs leave beside code.
NOT_CODE = ("__pycache__",)


def place(*names):
    """A path below the directory of roots."""
    out = os.environ.get("QUARK_ROOTFS_DIR") or os.path.join(os.path.dirname(HERE), "target", "rootfs")
    return os.path.join(os.path.realpath(out), *names)


def digest(*values):
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def content(path):
    """The digest of a file or directory: names, contents, modes of files."""
    path = os.path.realpath(path)
    if os.path.isdir(path):
        entries = []
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if name in NOT_CODE:
                continue
            entries.append([name, "->" + os.readlink(inner) if os.path.islink(inner) else content(inner)])
        return digest("directory", entries)
    if not os.path.isfile(path):
        raise Wrong(f"{path}: neither a file nor a directory: it cannot be code")
    sha = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            sha.update(block)
        mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
    return digest("file", mode, sha.hexdigest())


def code_key(d):
    return digest([[to, content(os.path.join(d.directory, source))] for source, to in sorted(d.code.items())])


def base_key(d):
    """The key of what a description lies on."""
    if d.base == "debian":
        return digest(VERSION, "debian", debian.release())
    if d.base == "busybox":
        return digest(VERSION, "busybox", content(debian.busybox()))
    return key(d.base)


def installs(d):
    return bool(d.packages or d.pip or d.npm)


def layer_key(d):
    """The key of packages and dependencies alone."""
    return digest(VERSION, base_key(d), sorted(d.packages), d.pip, d.npm)


def key(d):
    """The key of a whole root. Command, environment and limits are none of its content."""
    return digest(layer_key(d), code_key(d) if d.code else None, d.build)


def layers(d):
    """The names of all layers that a description may use."""
    own = {layer_key(d)} if d.code and installs(d) else set()
    return own | (layers(d.base) if not isinstance(d.base, str) else {base_layer(d)})


def base_layer(d):
    return f"{d.base}-{base_key(d)}"


@contextlib.contextmanager
def locked(path, wait=True):
    """Nobody else makes or removes `path`. Gives false if it is locked and `wait` is not given."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def is_made(path, wanted):
    try:
        with open(path + ".key", encoding="utf-8") as f:
            return f.read().strip() == wanted and os.path.isdir(path)
    except OSError:
        return False


def make(path, wanted, log, fill):
    """The directory `path` with key `wanted`, filled by `fill(directory)` if it is not there yet."""
    if is_made(path, wanted):
        return path
    if os.geteuid() != 0:
        raise Wrong(f"{log.name}: making a root file system needs root (device nodes, ownership): run it with sudo")
    with locked(path):
        if is_made(path, wanted):
            return path
        temporary = path + ".tmp"
        remove(temporary)
        try:
            fill(temporary)
            remove(path + ".key")
            remove(path)
            os.rename(temporary, path)
        finally:
            remove(temporary)
            remove(temporary + ".home")
        with open(path + ".key", "w", encoding="utf-8") as f:
            f.write(wanted + "\n")
    return path


def log_of(d):
    return Log(d.name, place(d.name + ".log"))


def base(d, log):
    """The root that a description lies on."""
    if not isinstance(d.base, str):
        return root(d.base)
    def fill(directory):
        (debian.make_debian if d.base == "debian" else debian.make_busybox)(directory, log)
        with Steps(directory, log) as steps:
            debian.finish(steps)
    return make(place("layers", base_layer(d)), base_key(d), log, fill)


def copy(source, directory, log):
    with log.step(f"copying {os.path.basename(source)}"):
        log.run("cp", ["cp", "-a", "--reflink=auto", source, directory])


def layer(d, log):
    """The root with the packages and dependencies of a description that has code besides."""
    if not installs(d):
        return base(d, log)
    def fill(directory):
        copy(base(d, log), directory, log)
        with Steps(directory, log) as steps:
            debian.install(steps, d.packages, d.pip, d.npm)
            debian.finish(steps)
    return make(place("layers", layer_key(d)), layer_key(d), log, fill)


def root(d):
    """The root of a description, made if need be; its path."""
    path, log = place(d.name), log_of(d)
    def fill(directory):
        copy(layer(d, log) if d.code else base(d, log), directory, log)
        with Steps(directory, log) as steps:
            if installs(d) and not d.code:
                debian.install(steps, d.packages, d.pip, d.npm)
            lay(d, directory, directory)
            for command in d.build:
                with log.step(command if len(command) < 100 else command[:90] + " …"):
                    steps.shell(f"build: {command}", command)
            os.makedirs(inside(directory, d.workdir), exist_ok=True)
            debian.finish(steps, d.code.values())
    if not is_made(path, key(d)):
        remember(d)
    make(path, key(d), log, fill)
    return path


def stack(d):
    """What a description's container needs, without a copy of what others need too: a root, its key, and the descriptions whose code lies
    on it, the lowest first. One with steps of `build`, or without code, has its own root."""
    if not d.code or d.build:
        return root(d), key(d), []
    remember(d)
    if installs(d) or isinstance(d.base, str):
        return layer(d, log_of(d)), layer_key(d) if installs(d) else base_key(d), [d]
    path, its_key, below = stack(d.base)
    return path, its_key, below + [d]


def inside(tree, path):
    """Where `path` of a root lies outside, with symbolic links followed as a process in it would follow them."""
    done, left, links = [], [p for p in path.split("/") if p], 0
    while left:
        part = left.pop(0)
        if part == "..":
            done = done[:-1]
        elif part != ".":
            here = os.path.join(tree, *done, part)
            if os.path.islink(here):
                links += 1
                if links > 40:
                    raise Wrong(f"{path}: too many symbolic links in the root")
                target = os.readlink(here)
                done = [] if target.startswith("/") else done
                left = [p for p in target.split("/") if p] + left
            else:
                done.append(part)
    return os.path.join(tree, *done)


def lay(d, into, tree):
    """Copies a description's code into the directory `into`, whose paths are those of the root `tree`."""
    for source, to in d.code.items():
        source_path = os.path.realpath(os.path.join(d.directory, source))
        target = into + inside(tree, to)[len(tree):]
        for there in (target, inside(tree, to)):
            if os.path.exists(there) and os.path.isdir(there) != os.path.isdir(source_path):
                kind = "a directory" if os.path.isdir(there) else "a file"
                raise Wrong(f"{d.file}: code: {source}: {to} is {kind} in the root")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source_path):
            shutil.copytree(source_path, target, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_CODE))
        else:
            shutil.copy2(source_path, target)


def remember(d):
    """Notes which layers a description uses from now on, and removes those that none does."""
    if os.geteuid() != 0:
        return
    os.makedirs(place("layers"), exist_ok=True)
    with open(place(d.name + ".layers.tmp"), "w", encoding="utf-8") as f:
        f.write("".join(name + "\n" for name in sorted(layers(d))))
    os.rename(place(d.name + ".layers.tmp"), place(d.name + ".layers"))
    for name in os.listdir(place("layers")):
        if name.endswith(".key") and name[:-4] not in used():
            with locked(place("layers", name[:-4]), wait=False) as held:
                # Who needs it notes that first, and asks for the lock then.
                if held and name[:-4] not in used():
                    remove(place("layers", name))
                    remove(place("layers", name[:-4]))


def used():
    names = set()
    for file in os.listdir(place()):
        if file.endswith(".layers"):
            with open(place(file), encoding="utf-8") as f:
                names |= set(f.read().split())
    return names
