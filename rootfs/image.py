#!/usr/bin/python3
"""Makes root file systems, OCI bundles and Docker images from descriptions in YAML (README.md beside this file).

    rootfs/image.py root python                 the root of rootfs/images/python.yaml; prints its path
    rootfs/image.py root FILE.yaml
    rootfs/image.py bundle FILE.yaml --out DIR  a bundle with config.json; prints DIR
    rootfs/image.py docker FILE.yaml            an image of Docker; prints its tag
    rootfs/image.py docker-options FILE.yaml    what `docker run` has to be told so that limits hold

Nothing is done twice: what is there is kept until its description or its code changes. Progress is on standard error.
"""
import argparse
import os
import shlex
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import layers  # noqa: E402
import outputs  # noqa: E402
from description import Wrong, load  # noqa: E402
from layers import root  # noqa: E402, F401
from outputs import docker_options, make_bundle, make_docker  # noqa: E402, F401


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="root|bundle|docker|docker-options")
    for name in ("root", "bundle", "docker", "docker-options"):
        command = commands.add_parser(name)
        command.add_argument("image", metavar="NAME|FILE.yaml")
        if name == "bundle":
            command.add_argument("--out", required=True, help="bundle directory to make")
            command.add_argument("--network", default="host", help="host (the default), new, or the path of a network namespace")
            command.add_argument("--port", type=int, help="where it is to listen (PORT), instead of the description's")
            command.add_argument("--cgroup-path")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.umask(0o022)
    try:
        description = load(options.image)
        if options.command == "root":
            print(layers.root(description))
        elif options.command == "bundle":
            print(make_bundle(description, options.out, options.network, options.port, options.cgroup_path))
        elif options.command == "docker":
            print(make_docker(description))
        else:
            print(shlex.join(docker_options(description)))
    except Wrong as wrong:
        for line in getattr(wrong, "tail", []):
            print(line, file=sys.stderr)
        print(f"image: {wrong}", file=sys.stderr)
        sys.exit(1)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"image: {options.image}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
