#!/usr/bin/python3
"""Prints the package's copyright file: what the programs, which are linked statically, contain of others, under which licence, and
the texts of those licences that Debian does not have in /usr/share/common-licenses. Fails if a text is missing.

    packaging/deb/copyright.py >target/deb/copyright
"""
import json
import os
import re
import subprocess
import sys
import tomllib

# Debian has its text. Where there is a choice, one like that is taken; else one that deny.toml allows.
COMMON = {"Apache-2.0": "/usr/share/common-licenses/Apache-2.0"}
ALLOWED = tomllib.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deny.toml"), "rb"))["licenses"]["allow"]
HEAD = """\
quark {version}
{repository}

Copyright: the quark authors
License: Apache-2.0 ({apache})

The programs in this package are linked statically. They contain, besides quark:

The GNU C Library {glibc}
    Copyright: Free Software Foundation, Inc., and others
    License: LGPL-2.1-or-later (/usr/share/common-licenses/LGPL-2.1). The programs can be linked anew with another version of it
    from quark's source code, by `make build`.

Start-up code and unwinder of GCC {gcc}
    Copyright: Free Software Foundation, Inc.
    License: GPL-3.0-or-later (/usr/share/common-licenses/GPL-3) with the GCC Runtime Library Exception 3.1, which lets programs
    that are linked with it have any licence.

The Rust standard library {rust}, and what it contains
    Copyright: the Rust project contributors
    License: Apache-2.0 ({apache})
"""


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked():
    """The packages of others whose code is in the programs or in the guest kernel inside them: (name, version)."""
    common = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--locked"]
    trees = [
        ["-p", "qvisor", "-p", "containerd-shim-quark", "--target", "x86_64-unknown-linux-gnu"],
        ["-p", "qkernel", "--features", "image", "--target", "x86_64-unknown-none"],
    ]
    lines = "".join(output("cargo", "tree", *tree, *common) for tree in trees).splitlines()
    # Those of this workspace have a path after their version.
    packages = {tuple(line.split()[:2]) for line in lines if line and " (/" not in line}
    return {(name, version.removeprefix("v")) for name, version in packages}


def choose(expression):
    """The licences that count, of an SPDX expression: all of an AND, one of an OR."""
    tokens = re.findall(r"[()]|[^\s()/]+(?:\s+WITH\s+[^\s()]+)?|/", expression)
    at = 0

    def one():
        nonlocal at
        token = tokens[at]
        at += 1
        if token != "(":
            return [token]
        inner = any_of()
        at += 1
        return inner

    def all_of():
        nonlocal at
        licences = one()
        while at < len(tokens) and tokens[at] == "AND":
            at += 1
            licences = licences + one()
        return licences

    def any_of():
        nonlocal at
        choices = [all_of()]
        while at < len(tokens) and tokens[at] in ("OR", "/"):
            at += 1
            choices.append(all_of())
        return min(choices, key=lambda licences: sum((l not in COMMON) + 100 * (l not in ALLOWED) for l in licences))

    licences = any_of()
    if at != len(tokens):
        sys.exit(f"copyright.py: licence {expression!r} is not understood")
    if not set(licences) <= set(ALLOWED):
        sys.exit(f"copyright.py: deny.toml does not allow {expression!r}")
    return sorted(set(licences))


def texts(package, licences):
    """The texts to be given with a package: those that Debian does not have, and what a NOTICE file asks for."""
    directory = os.path.dirname(package["manifest_path"])
    names = sorted(os.listdir(directory))
    found = [name for name in names if re.match(r"NOTICE", name, re.I)]
    for licence in licences:
        if licence in COMMON:
            continue
        key = licence.split("-")[0].lower()
        files = [name for name in names if re.match(r"(LICEN[CS]E|COPYING)", name, re.I)]
        own = [name for name in files if key in name.lower()]
        general = [name for name in files if re.fullmatch(r"(LICEN[CS]E|COPYING)(\.(md|txt))?", name, re.I)]
        # One file alone is the one, whatever its name.
        chosen = own or general or (files if len(files) == 1 else [])
        if not chosen:
            sys.exit(f"copyright.py: {package['name']} {package['version']} has no text of its licence {licence}: {names}")
        found += chosen
    for name in dict.fromkeys(found):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            yield open(path, encoding="utf-8", errors="replace").read().strip().replace("\r", "")


def main():
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--locked"))
    packages = {(p["name"], p["version"]): p for p in metadata["packages"]}
    own = packages[("qvisor", next(p["version"] for p in metadata["packages"] if p["name"] == "qvisor"))]
    glibc = output("getconf", "GNU_LIBC_VERSION").split()[1]
    gcc, rust = output("cc", "-dumpfullversion").strip(), output("rustc", "--version").split()[1]
    print(HEAD.format(version=own["version"], repository=own["repository"], glibc=glibc, gcc=gcc, rust=rust, apache=COMMON["Apache-2.0"]))
    print("Libraries of crates.io; where one offers a choice of licences, the one under which it is used:\n")
    by_text = {}
    for name, version in sorted(linked()):
        package = packages[(name, version)]
        if not package["license"]:
            sys.exit(f"copyright.py: {name} {version} names no licence")
        licences = choose(package["license"])
        authors = ", ".join(re.sub(r"\s*<[^>]*>", "", author) for author in package["authors"]) or f"the authors of {name}"
        print(f"{name} {version}\n    Copyright: {authors}")
        if package["repository"]:
            print(f"    Source: {package['repository']}")
        print(f"    License: {' and '.join(licences)}" + (f" ({COMMON['Apache-2.0']})" if licences == ["Apache-2.0"] else ""))
        for text in texts(package, licences):
            by_text.setdefault(text, []).append(f"{name} {version}")
    for text, users in by_text.items():
        print(f"\n{'-' * 80}\nOf {', '.join(users)}:\n\n{text}")


if __name__ == "__main__":
    main()
