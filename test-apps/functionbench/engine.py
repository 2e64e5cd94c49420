"""Containers of a dockerd of the test's own (test-apps/docker/with-docker.sh)."""
import json
import os
import subprocess
import time

import outputs
from harness import http, memory

LIMIT_S = 180
NETWORK, SUBNET = "functionbench", "10.88.0.0/16"


class Failed(Exception):
    """Something is not as it should be; the text says what."""


def command(*words, limit_s=LIMIT_S):
    """Runs to the end; what it prints."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(words[:3])}…: not done within {limit_s} s") from None
    if done.returncode:
        raise Failed(f"{' '.join(words[:3])}…: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout.strip()


def docker(*words):
    return command("docker", *words)


def make_network():
    docker("network", "create", "--subnet", SUBNET, NETWORK)


class Container:
    """A container of an image, just started. A context manager: it is gone at the end."""
    made = 0

    def __init__(self, runtime, quark, image, description):
        Container.made += 1
        self.runtime, self.quark, self.port = runtime, quark, description.port
        self.name = f"{runtime}-{Container.made}"
        # None has the address of another before it, whose link address a neighbour might still believe.
        self.address = f"10.88.{1 + Container.made // 250}.{1 + Container.made % 250}"
        self.began = time.perf_counter()
        self.id = docker("run", "--detach", "--name", self.name, "--runtime", runtime, "--network", NETWORK, "--ip", self.address, *outputs.docker_options(description), image)
        self.pid = int(self.inspect(".State.Pid"))
        self.cgroup = self._cgroup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        docker("rm", "--force", self.name)

    def inspect(self, what):
        return docker("inspect", "--format", "{{" + what + "}}", self.name)

    def _cgroup(self):
        """Its path in the hierarchy of memory."""
        _, root = memory.cgroup_root()
        path = "/docker/" + self.id
        if not os.path.isdir(root + path):
            raise Failed(f"{self.runtime}: there is no cgroup {root}{path}; is the cgroup driver cgroupfs?")
        return path

    def alive(self):
        if self.inspect(".State.Running") != "true":
            output = subprocess.run(["docker", "logs", "--tail", "5", self.name], capture_output=True, text=True, timeout=LIMIT_S)
            raise Failed(f"the container has ended with {self.inspect('.State.ExitCode')}"
                         f"{' (out of memory)' if self.inspect('.State.OOMKilled') == 'true' else ''}: {(output.stdout + output.stderr).strip()[-400:]}")

    def ask(self, path):
        """One request on a connection of its own: (seconds from connect to the last byte, answer)."""
        began = time.perf_counter()
        with http.connect(self.port, self.address) as connection:
            body = http.ask(connection, path, close=True)
        return time.perf_counter() - began, json.loads(body)

    def first(self, path):
        """Asks until it is answered: (seconds since `docker run` was called, answer)."""
        asked = time.perf_counter()
        while True:
            try:
                _, answer = self.ask(path)
                return time.perf_counter() - self.began, answer
            except OSError as error:
                if time.perf_counter() - self.began > LIMIT_S:
                    raise Failed(f"no answer within {LIMIT_S} s: {error}") from None
            # Docker takes its time to say so.
            if time.perf_counter() - asked > 2:
                self.alive()
                asked = time.perf_counter()
            time.sleep(0.001)

    def held_bytes(self):
        """What its cgroup holds, kernel memory included, without clean page cache, and its memfds beyond that."""
        beyond = memory.memfd_bytes(self.pid) - memory.shared_bytes(self.cgroup)
        return memory.cgroup_bytes(self.cgroup) + max(beyond, 0)

    def sleep(self):
        """`docker kill -s STOP`, and a look whether it hibernates."""
        docker("kill", "--signal", "STOP", self.name)
        state = self.hibernation()
        if state != "Hibernated":
            raise Failed(f"after STOP the state is {state}, not Hibernated")

    def hibernation(self):
        state = json.loads(command(self.quark, "--root", self._state_root(), "state", self.id))
        return state.get("hibernation")

    def _state_root(self):
        """Where Docker has the runtime keep its state depends on Docker's version."""
        for top in (os.environ["WORK"], "/run"):
            for directory, _, files in os.walk(top):
                if "control.sock" in files and os.path.basename(directory) == self.id:
                    return os.path.dirname(directory)
        raise Failed(f"no state of {self.id} in {os.environ['WORK']} or /run")
