"""Bundles, what Docker is told, and the command line, over a root that is only a few files."""
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, HERE)

import bundle  # noqa: E402
import outputs  # noqa: E402
from description import Wrong  # noqa: E402
from test_layers import Case  # noqa: E402

IMAGE = os.path.join(HERE, "..", "image.py")


class Bundles(Case):
    def setUp(self):
        super().setUp()
        self.write("tree/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/var/www:/bin/false\n")
        self.write("tree/etc/group", "root:x:0:\nweb:x:34:\nlogs:x:40:root,web\n")
        self.write("tree/usr/lib/own", "")
        self.write("images/main.py", "main")
        self.write("images/more/a", "a")
        self.write("images/more/sub/b", "b")
        os.mkdir(self.path("tree/srv"))

    def bundle(self, text, **more):
        d = self.described("some_one", "base: busybox\ncommand: [run]\n" + text)
        with mock.patch("layers.stack", lambda d: (self.path("tree"), "key", [d] if d.code else [])):
            out = outputs.make_bundle(d, self.path("out"), **more)
        with open(out + "/config.json") as f:
            config = json.load(f)
        self.binds = {m["destination"]: (m["source"].removeprefix(self.path("out")), m["options"]) for m in config["mounts"] if m["type"] == "bind"}
        return config

    def test_limits_environment_and_user(self):
        config = self.bundle("workdir: /srv/work\nenvironment: {HOME: /srv, N: 5, EQUALS: a=b}\nuser: web\nport: 8080\n"
                             "limits: {memory: 64M, cpus: 0.25, pids: 9}\n", network="new", cgroup_path="/some")
        process, resources = config["process"], config["linux"]["resources"]
        self.assertEqual((process["args"], process["cwd"], config["hostname"]), (["run"], "/srv/work", "some-one"))
        self.assertEqual(process["user"], {"uid": 33, "gid": 34, "additionalGids": [40]})
        # Each name stands once: a program would find the first.
        self.assertEqual(sorted(process["env"]), sorted([bundle.ENVIRONMENT[0], "TERM=xterm", "HOME=/srv", "PORT=8080", "N=5", "EQUALS=a=b"]))
        self.assertEqual(resources["memory"], {"limit": 64 << 20})
        self.assertEqual(resources["cpu"], {"quota": 25000, "period": 100000})
        self.assertEqual(resources["pids"], {"limit": 9})
        self.assertIn({"type": "network"}, config["linux"]["namespaces"])
        self.assertEqual(config["linux"]["cgroupsPath"], "/some")
        self.assertTrue(config["root"]["readonly"])
        self.assertTrue(os.path.isdir(self.path("tree/srv/work")))

    def test_what_is_not_said(self):
        config = self.bundle("")
        self.assertEqual(list(config["linux"]["resources"]), ["devices"])
        self.assertNotIn({"type": "network"}, config["linux"]["namespaces"])
        self.assertEqual(config["process"]["user"], {"uid": 0, "gid": 0, "additionalGids": [40]})
        self.assertIn("HOME=/root", config["process"]["env"])
        self.assertIn("PORT=99", self.bundle("port: 80", port=99)["process"]["env"])

    def test_users(self):
        for text, user in (("33", {"uid": 33, "gid": 34, "additionalGids": [40]}), ("web:logs", {"uid": 33, "gid": 40}),
                           ("1000:7", {"uid": 1000, "gid": 7}), ("1000", {"uid": 1000, "gid": 0})):
            self.assertEqual(self.bundle(f"user: {text}")["process"]["user"], user)
        for text, said in (("nobody", "user: nobody: not in /etc/passwd"), ("web:nogroup", "user: nogroup: not in /etc/group")):
            with self.assertRaisesRegex(Wrong, said):
                self.bundle(f"user: {text}")

    def test_code_is_bound_over_a_shared_root(self):
        self.bundle("code: {main.py: /srv/main.py, more: /srv/more}")
        self.assertEqual(self.binds, {"/srv": ("/code/srv", ["rbind", "ro"])})
        self.assertEqual(self.read("out/code/srv/main.py") + self.read("out/code/srv/more/sub/b"), "mainb")
        # Nothing of the root is hidden but what the code replaces.
        self.bundle("code: {main.py: /usr/lib/own, more: /usr/lib}")
        self.assertEqual(sorted(self.binds), ["/usr/lib/a", "/usr/lib/own", "/usr/lib/sub"])
        self.assertEqual((self.read("tree/usr/lib/own"), self.read("tree/usr/lib/a"), os.listdir(self.path("tree/usr/lib/sub"))), ("", "", []))
        # Mount points that are there already make no difference.
        self.bundle("code: {main.py: /usr/lib/own, more: /usr/lib}")
        self.assertEqual(sorted(self.binds), ["/usr/lib/a", "/usr/lib/own", "/usr/lib/sub"])

    def test_the_working_directory_is_made_where_it_is_seen(self):
        for path, there in (("/srv/more/new", "out/code/srv/more/new"), ("/srv", "out/code/srv"), ("/srvs", "tree/srvs"), ("/", "tree")):
            self.bundle(f"code: {{more: /srv/more}}\nworkdir: {path}")
            self.assertTrue(os.path.isdir(self.path(there)), path)
            self.assertEqual(list(self.binds), ["/srv"])
        self.assertEqual(os.listdir(self.path("tree/srv")), [])

    def test_a_bundle_has_its_code_anew(self):
        self.bundle("code: {more: /srv/more}")
        os.unlink(self.path("images/more/a"))
        self.bundle("code: {more: /srv/more}")
        self.assertEqual(os.listdir(self.path("out/code/srv/more")), ["sub"])
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["code", "config.json"])

    def test_a_root_that_is_written_is_the_bundles_own(self):
        text = "readonly: false\ncode: {main.py: /usr/lib/own}"
        self.write("roots/keep", "")
        with mock.patch("outputs.os.geteuid", lambda: 0):
            for _ in range(2):
                config = self.bundle(text)
                self.assertEqual(config["root"], {"path": self.path("out/rootfs"), "readonly": False})
                self.assertEqual((self.read("out/rootfs/usr/lib/own"), self.read("tree/usr/lib/own")), ("main", ""))
                self.assertEqual(self.binds, {})
                self.assertFalse(os.path.exists(self.path("out/rootfs/written")))
                self.write("out/rootfs/written", "")
        self.bundle("")
        self.assertFalse(os.path.exists(self.path("out/rootfs")))

    def test_a_command_is_needed(self):
        with self.assertRaisesRegex(Wrong, "images/some.yaml: command: is missing"):
            outputs.make_bundle(self.described("some", "base: busybox"), self.path("out"))


class Docker(Case):
    def test_what_docker_is_told(self):
        d = self.described("some", "base: busybox\ncommand: [sh, -c, 'echo \"$A\"']\nenvironment: {A: 'a \"b\" $c \\d'}\nworkdir: /srv\nuser: '5'\n"
                                   "port: 80\nlimits: {memory: 64M, cpus: 0.5, pids: 9}")
        self.assertEqual(outputs.dockerfile(d, "quark-root:x", True).splitlines(), [
            "FROM quark-root:x", "COPY code/ /", 'ENV PORT="80"', 'ENV A="a \\"b\\" \\$c \\\\d"', "WORKDIR /srv", "USER 5", "EXPOSE 80",
            'CMD ["sh", "-c", "echo \\"$A\\""]'])
        self.assertEqual(outputs.docker_options(d), ["--read-only", "--tmpfs", "/tmp:exec", "--memory", str(64 << 20), "--cpus", "0.5", "--pids-limit", "9"])
        self.assertEqual(outputs.docker_options(self.described("some", "base: busybox\nreadonly: false")), [])

    def test_a_root_is_imported_once_and_an_image_made_once(self):
        self.write("images/main.py", "1")
        there, calls = set(), []
        def docker(*arguments):
            calls.append(arguments)
            return subprocess.CompletedProcess(arguments, 0 if arguments[0] == "version" or arguments[-1] in there else 1, b"", b"")
        def run(_, what, command, *more, **options):
            calls.append(what)
            there.add(command[-1] if what == "docker import" else command[3])
            if what == "docker build":
                self.assertEqual(sorted(os.listdir(command[-1])), ["Dockerfile", "code"])
        stack = mock.patch("layers.stack", lambda d: (self.path("tree"), "key", [d]))
        with stack, mock.patch("outputs.docker", docker), mock.patch("steps.Log.run", run):
            def made(name, text):
                del calls[:]
                d = self.described(name, f"base: busybox\ncode: {{main.py: /main.py}}\ncommand: [{text}]")
                return outputs.make_docker(d), [c for c in calls if isinstance(c, str)]
            first, did = made("one", "a")
            self.assertRegex(first, "^quark/one:[0-9a-f]{32}$")
            self.assertEqual(did, ["docker import", "docker build"])
            self.assertEqual(made("one", "a"), (first, []))
            self.assertEqual(made("two", "a")[1], ["docker build"])
            other, did = made("one", "b")
            self.assertNotEqual(other, first)
            self.assertEqual(did, ["docker build"])
            self.write("images/main.py", "2")
            self.assertNotEqual(made("one", "b")[0], other)
        self.assertEqual(os.listdir(self.path("roots")), [])

    def test_a_daemon_that_does_not_answer(self):
        told = subprocess.CompletedProcess([], 1, b"", b"x\nCannot connect\n")
        with mock.patch("outputs.docker", lambda *_: told), self.assertRaisesRegex(Wrong, "^Docker does not answer: Cannot connect$"):
            outputs.make_docker(self.described("some", "base: busybox\ncommand: [x]"))


class CommandLine(Case):
    def test_what_is_wrong_is_one_line(self):
        self.described("good", "base: busybox\nreadonly: false\nlimits: {pids: 3}")
        self.write("images/bad.yaml", "name: bad\nbase: busybox\nport: x\n")
        for arguments, code, out, err in (
            (["docker-options", "images/good.yaml"], 0, "--pids-limit 3\n", ""),
            (["root", "images/bad.yaml"], 1, "", "image: images/bad.yaml: port: a number from 1 to 65535\n"),
            (["bundle", "images/good.yaml", "--out", "x"], 1, "", None),
            (["root", "none"], 1, "", None),
        ):
            ran = subprocess.run([IMAGE, *arguments], capture_output=True, text=True, cwd=self.directory)
            self.assertEqual((ran.returncode, ran.stdout), (code, out), ran.stderr)
            self.assertEqual(ran.stderr, err if err is not None else ran.stderr)
            self.assertEqual(len(ran.stderr.splitlines()), code, ran.stderr)


if __name__ == "__main__":
    unittest.main()
