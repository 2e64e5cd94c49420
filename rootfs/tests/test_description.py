"""What a description may say, and what is told of one that is wrong."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from description import IMAGES, Wrong, load  # noqa: E402

WHOLE = """
name: some
base: python
packages: [libc6, g++, python3=3.11.2-1+b1]
dependencies: {pip: ["numpy >= 1.2", pyaes==1.6.1], npm: [express@4.18.2, "@scope/one@^1.0"]}
code: {main.py: /srv/main.py, more: /srv/more}
build: [make]
command: [python3, /srv/main.py]
workdir: /srv
environment: {N: 5, WORD: no, ANSWER: "yes $HOME"}
user: 33:33
port: 8080
readonly: false
limits: {memory: 256M, cpus: 0.5, pids: 64}
"""


class Descriptions(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.write("main.py", "")
        os.mkdir(self.path("more"))

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def wrong(self, text, name="some"):
        """What is told of a description."""
        with self.assertRaises(Wrong) as raised:
            load(self.write(name + ".yaml", text))
        told = str(raised.exception)
        self.assertNotIn("\n", told)
        self.assertIn(self.path(name + ".yaml"), told)
        return told

    def test_all_keys(self):
        d = load(self.write("some.yaml", WHOLE))
        self.assertEqual((d.name, d.base.name, d.literal_base), ("some", "python", "debian"))
        self.assertEqual(d.packages, ["libc6", "g++", "python3=3.11.2-1+b1"])
        self.assertEqual((d.pip, d.npm), (["numpy >= 1.2", "pyaes==1.6.1"], ["express@4.18.2", "@scope/one@^1.0"]))
        self.assertEqual(d.code, {"main.py": "/srv/main.py", "more": "/srv/more"})
        self.assertEqual((d.build, d.command, d.workdir), (["make"], ["python3", "/srv/main.py"], "/srv"))
        # As YAML 1.2 has it: `no` is a word, and 33:33 is no number in base 60.
        self.assertEqual((d.environment, d.user), ({"N": "5", "WORD": "no", "ANSWER": "yes $HOME"}, "33:33"))
        self.assertEqual((d.port, d.readonly, d.memory_bytes, d.cpus, d.pids), (8080, False, 256 << 20, 0.5, 64))

    def test_what_is_not_said(self):
        d = load(self.write("some.yaml", "name: some\nbase: busybox\n"))
        self.assertEqual((d.user, d.workdir, d.readonly, d.command, d.memory_bytes), ("root", "/", True, [], None))

    def test_wrong_values_are_named(self):
        for text, said in [
            ("packages: python3", "packages: a list of apt packages"),
            ("packages: [--force-yes]", "packages: a list of apt packages"),
            ("packages: []", "packages: a list"),
            ("dependencies: [pyaes]", "dependencies: a map of pip, npm"),
            ("dependencies: {gem: [x]}", "dependencies: gem: there is no such key (keys: pip, npm)"),
            ("dependencies: {pip: [--index-url=x]}", "dependencies: pip: a list of requirements"),
            ("dependencies: {npm: [express]}", "dependencies: npm: a list of NAME@VERSION"),
            ("code: [main.py]", "code: a map"),
            ("code: {none.py: /srv/none.py}", "code: none.py: no such file or directory"),
            ("code: {/etc/passwd: /srv/x}", "code: /etc/passwd: a path relative to the description"),
            ("code: {main.py: srv/main.py}", "code: main.py: an absolute path"),
            ("code: {main.py: /srv/../main.py}", "code: main.py: an absolute path without . and .."),
            ("code: {main.py: /}", "code: main.py: an absolute path"),
            ("code: {main.py: /tmp/main.py}", "not /tmp, which each container has of its own"),
            ("build: make", "build: a list of strings"),
            ("command: python3 main.py", "command: a list of strings"),
            ("command: [sleep, 5]", "quote numbers"),
            ("workdir: srv", "workdir: an absolute path"),
            ("environment: [A=1]", "environment: a map of NAME: value"),
            ("environment: {A: true}", "environment: a map of NAME: value, values strings without line breaks, or whole numbers (not A)"),
            ("environment: {A-B: x}", "(not A-B)"),
            ("user: a b", "user: USER or USER:GROUP"),
            ("port: 0", "port: a number from 1 to 65535"),
            ("port: true", "port: a number"),
            ("port: '80'", "port: a number"),
            ("readonly: yes", "readonly: true or false"),
            ("limits: {memory: 256}", "limits: memory: a whole number and K, M or G, such as 256M"),
            ("limits: {memory: 0M}", "limits: memory: a whole number"),
            ("limits: {cpus: 0}", "limits: cpus: a number from"),
            ("limits: {cpus: .nan}", "limits: cpus: a number from"),
            ("limits: {pids: 1.5}", "limits: pids: a whole number"),
            ("limits: {swap: 1}", "limits: swap: there is no such key (keys: memory, cpus, pids)"),
            ("limits: 256M", "limits: a map of memory, cpus, pids"),
            ("comand: [x]", "comand: there is no such key (keys: name, base, packages,"),
            ("1: x", "1: there is no such key"),
            ("base: debian", "the key base stands twice"),
        ]:
            with self.subTest(text):
                self.assertIn(said, self.wrong(f"name: some\nbase: debian\n{text}\n"))

    def test_the_file_itself(self):
        for text, said in [("", "a map is needed (keys: name,"), ("- x", "a map is needed"), ("a: [", "not YAML"), ("base: debian", "name: is missing"),
                           ("name: some", "base: is missing"), ("name: Some\nbase: debian", "name: small letters and digits"),
                           ("name: other\nbase: debian", "name: other: must be the file's name without .yaml"), ("? [a]\n: b", "not YAML"),
                           ("port: !!int x", "not YAML"), ("port: !!bool x", "not YAML"), ("port: " + "[" * 5000, "not YAML"),
                           ("port: " + "9" * 5000, "not YAML"), ("name: some\nbase: !!python/name:os.system", "not YAML"), ("name: &a some\nbase: *b", "not YAML")]:
            with self.subTest(text):
                self.assertIn(said, self.wrong(text))
        self.assertIn("layers: is taken", self.wrong("name: layers\nbase: debian", "layers"))
        with open(self.path("some.yaml"), "wb") as f:
            f.write(b"name: \xff\n")
        with self.assertRaisesRegex(Wrong, "not a text in UTF-8"):
            load(self.path("some.yaml"))
        with self.assertRaisesRegex(Wrong, "none.yaml: No such file"):
            load(self.path("none.yaml"))
        with self.assertRaisesRegex(Wrong, "perl: no such image .there are: busybox, nginx, python, servers"):
            load("perl")

    def test_bases(self):
        self.assertIn("base: perl: neither debian nor busybox, and there is no", self.wrong("name: some\nbase: perl\n"))
        self.write("low.yaml", "name: low\nbase: busybox\n")
        self.assertEqual(load(self.write("some.yaml", "name: some\nbase: low\n")).base.name, "low")
        self.assertIn("packages: busybox has nothing to install with", self.wrong("name: some\nbase: low\npackages: [x]\n"))
        self.assertIn("dependencies: busybox has", self.wrong("name: some\nbase: busybox\ndependencies: {pip: [x]}\n"))
        self.write("low.yaml", "name: low\nbase: some\n")
        with self.assertRaisesRegex(Wrong, "low.yaml: base: some extends this description itself"):
            load(self.write("some.yaml", "name: some\nbase: low\n"))
        # What is wrong with the lower one is told with its name.
        self.write("low.yaml", "name: low\nbase: debian\nport: x\n")
        with self.assertRaisesRegex(Wrong, "low.yaml: port"):
            load(self.path("some.yaml"))

    def test_the_images_of_this_repository(self):
        names = sorted(f[:-5] for f in os.listdir(IMAGES))
        self.assertEqual(names, ["busybox", "nginx", "python", "servers"])
        for name in names:
            self.assertEqual(load(name).name, name)


if __name__ == "__main__":
    unittest.main()
