"""What is made of a description and its root: an OCI bundle, or a Docker image."""
import contextlib
import json
import os
import subprocess
import tempfile

import bundle
import layers
from description import Wrong
from steps import remove


def needs_command(d):
    if not d.command:
        raise Wrong(f"{d.file}: command: is missing, so there is nothing to run (image.py root makes the root alone)")


def environment(d, port=None):
    """NAME=value of a container. PORT is where it is to listen, if the description has a port."""
    port = port or d.port
    return [f"{name}={value}" for name, value in {**({"PORT": port} if port else {}), **d.environment}.items()]


def user_of(d, tree):
    """(uid, gid, additional groups, home) of a description's user, as the root has them."""
    def table(name):
        try:
            with open(layers.inside(tree, f"/etc/{name}"), encoding="utf-8", errors="replace") as f:
                return [line.rstrip("\n").split(":") for line in f if line.count(":") >= 3]
        except FileNotFoundError:
            return []

    user, _, group = d.user.partition(":")
    account = next((a for a in table("passwd") if user == a[0] or user == a[2]), None)
    if not account and not user.isdigit():
        raise Wrong(f"{d.file}: user: {user}: not in /etc/passwd of the root")
    uid, gid = (int(account[2]), int(account[3])) if account else (int(user), 0)
    found = next((g for g in table("group") if group in (g[0], g[2])), None)
    if group and not found and not group.isdigit():
        raise Wrong(f"{d.file}: user: {group}: not in /etc/group of the root")
    if group:
        gid = int(found[2]) if found else int(group)
    more = [] if group or not account else [int(g[2]) for g in table("group") if account[0] in g[3].split(",") and int(g[2]) != gid]
    return uid, gid, more, account[5] if account and len(account) > 5 and account[5] else "/"


def parts(staged, tree, path=""):
    """Paths below `staged` that can be bound over the root `tree`, none of which hides anything but what has its own name."""
    for name in sorted(os.listdir(staged + path)):
        inner = f"{path}/{name}"
        here, there = staged + inner, tree + inner
        if os.path.isdir(here) and not os.path.islink(here) and os.path.isdir(there) and os.listdir(there):
            yield from parts(staged, tree, inner)
        else:
            yield inner


def mount_point(d, tree, path, directory):
    """Makes what a container of a root that is not written needs to mount there."""
    there = tree + path
    try:
        if directory:
            os.makedirs(there, exist_ok=True)
        elif not os.path.lexists(there):
            os.makedirs(os.path.dirname(there), exist_ok=True)
            open(there, "x").close()
    except PermissionError:
        raise Wrong(f"{d.name}: making {path} in its root needs root: run it with sudo") from None


@contextlib.contextmanager
def code_of(descriptions, tree, directory):
    """Code of descriptions as it lies in the root `tree`, in a directory `directory` that is made anew."""
    remove(directory)
    os.makedirs(directory)
    try:
        for d in descriptions:
            layers.lay(d, directory, tree)
        yield directory
    finally:
        remove(directory)


def make_bundle(d, out, network="host", port=None, cgroup_path=None):
    """Makes the bundle directory `out`; gives `out`. Over a root that is not written and that others have too, code is bound that lies in the
    bundle. One that is written lies in the bundle, fresh."""
    needs_command(d)
    out = os.path.abspath(out)
    tree, _, coded = layers.stack(d)
    # Whose user it is to be is known now, before anything is made.
    uid, gid, groups, home = user_of(d, tree)
    os.makedirs(out, exist_ok=True)
    binds = []
    if d.readonly:
        remove(os.path.join(out, "rootfs"))
        with code_of(coded, tree, os.path.join(out, "code.tmp")) as new:
            for path in parts(new, tree):
                mount_point(d, tree, path, os.path.isdir(new + path))
                binds.append((os.path.join(out, "code") + path, path, "ro"))
            remove(os.path.join(out, "code"))
            os.rename(new, os.path.join(out, "code"))
    else:
        tree = own_root(d, tree, coded, os.path.join(out, "rootfs"))
    workdir = layers.inside(tree, d.workdir)[len(tree):]
    over = next((b for b in binds if (workdir + "/").startswith(b[1] + "/")), None)
    mount_point(d, *((over[0], workdir[len(over[1]):]) if over else (tree, workdir)), True)
    return bundle.write(out, rootfs=tree, args=d.command, env=[f"HOME={home}", *environment(d, port)], cwd=d.workdir, binds=binds,
                        readonly=d.readonly, hostname=d.name.replace("_", "-"), network=network, cgroup_path=cgroup_path,
                        memory_bytes=d.memory_bytes, uid=uid, gid=gid, groups=groups, cpus=d.cpus, pids=d.pids)


def own_root(d, tree, coded, place):
    """A copy of a root at `place`, with the code on it."""
    if os.geteuid() != 0:
        raise Wrong(f"{d.name}: copying a root file system needs root (device nodes, ownership): run it with sudo")
    remove(place)
    temporary = place + ".tmp"
    remove(temporary)
    try:
        layers.copy(tree, temporary, layers.log_of(d))
        for c in coded:
            layers.lay(c, temporary, temporary)
        os.rename(temporary, place)
    finally:
        remove(temporary)
    return place


def docker_options(d):
    """What `docker run` has to be told so that a container has the description's limits: an image cannot have them."""
    options = ["--read-only", "--tmpfs", "/tmp:exec"] if d.readonly else []
    for option, value in (("--memory", d.memory_bytes), ("--cpus", d.cpus), ("--pids-limit", d.pids)):
        options += [option, str(value)] if value else []
    return options


def dockerfile(d, parent, code):
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") for name, value in
              (e.split("=", 1) for e in environment(d))}
    lines = [f"FROM {parent}", *(["COPY code/ /"] if code else []), *(f'ENV {name}="{value}"' for name, value in quoted.items()),
             f"WORKDIR {d.workdir}", f"USER {d.user}", *([f"EXPOSE {d.port}"] if d.port else []), f"CMD {json.dumps(d.command)}"]
    return "\n".join(lines) + "\n"


def docker(*arguments, **more):
    try:
        return subprocess.run(["docker", *arguments], capture_output=True, **more)
    except FileNotFoundError:
        raise Wrong("docker is not installed (apt package docker.io)") from None


def make_docker(d):
    """Makes the Docker image of a description, if Docker has it not; its tag. The root that others have too is imported once."""
    needs_command(d)
    asked = docker("version")
    if asked.returncode != 0:
        raise Wrong(f"Docker does not answer: {asked.stderr.decode(errors='replace').strip().splitlines()[-1]}")
    tree, key, coded = layers.stack(d)
    log = layers.log_of(d)
    parent = f"quark-root:{key}"
    text = dockerfile(d, parent, coded)
    tag = f"quark/{d.name}:{layers.digest(text, [layers.code_key(c) for c in coded])}"
    if docker("image", "inspect", tag).returncode == 0:
        return tag
    if docker("image", "inspect", parent).returncode != 0:
        with log.step(f"importing {tree} into Docker"):
            log.run("docker import", ["sh", "-c", 'tar -C "$1" --numeric-owner --exclude="./proc/*" --exclude="./dev/*" -c . | docker import - "$2"',
                                      "sh", tree, parent])
    os.makedirs(layers.place(), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layers.place(), prefix=f"{d.name}.docker-") as context:
        with open(context + "/Dockerfile", "w", encoding="utf-8") as f:
            f.write(text)
        with log.step(f"docker build {tag}"), code_of(coded, tree, context + "/code"):
            log.run("docker build", ["docker", "build", "-t", tag, context])
    return tag
