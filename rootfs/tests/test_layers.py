"""Keys, and how roots are made, kept and left: with nothing of a distribution, and without root."""
import io
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stderr
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import debian  # noqa: E402
import layers  # noqa: E402
from description import Wrong, load  # noqa: E402
from steps import Failed, Log, Steps, mounts_below  # noqa: E402


class Case(unittest.TestCase):
    """A directory of descriptions, and one of roots."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = os.path.realpath(directory.name)
        os.makedirs(self.path("images"))
        for patch in (mock.patch.dict(os.environ, {"QUARK_ROOTFS_DIR": self.path("roots")}), mock.patch("layers.os.geteuid", lambda: 0),
                      mock.patch("debian.busybox", lambda: "/bin/sh"), mock.patch("debian.release", lambda: "bookworm")):
            patch.start()
            self.addCleanup(patch.stop)
        self.said = io.StringIO()
        said = redirect_stderr(self.said)
        said.__enter__()
        self.addCleanup(said.__exit__, None, None, None)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as f:
            f.write(text)

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def described(self, name, text):
        self.write(f"images/{name}.yaml", f"name: {name}\n{text}\n")
        return load(self.path("images", name + ".yaml"))


class Keys(Case):
    def test_a_key_is_that_of_what_the_root_is_made_of(self):
        self.write("images/main.py", "print(1)\n")
        self.write("images/more/a", "a")
        text = "base: debian\npackages: [a, b]\ncode: {main.py: /srv/main.py, more: /srv/more}\nbuild: [make]\n"
        first = layers.key(self.described("some", text))
        def key(changed):
            return layers.key(self.described("some", changed))
        # None of these is in the root.
        for same in (text, text.replace("a, b", "b, a"), text + "command: [x]\nport: 1\nlimits: {memory: 1M}", text.replace(
                "main.py: /srv/main.py, more: /srv/more", "more: /srv/more, main.py: /srv/main.py")):
            self.assertEqual(key(same), first)
        for other in (text.replace("a, b", "a"), text.replace("make", "make x"), text.replace("/srv/more", "/srv/less"),
                      text + "dependencies: {pip: [x]}", text + "dependencies: {npm: [x@1]}", text.replace("debian", "busybox").replace("packages", "#")):
            self.assertNotEqual(key(other), first, other)
        self.write("images/more/__pycache__/a.pyc", "a")
        self.assertEqual(key(text), first)
        for change in (lambda: self.write("images/more/a", "b"), lambda: self.write("images/more/b", ""), lambda: os.mkdir(self.path("images/more/d")),
                       lambda: os.symlink("a", self.path("images/more/l")), lambda: os.chmod(self.path("images/main.py"), 0o755)):
            before = key(text)
            change()
            self.assertNotEqual(key(text), before)

    def test_what_lies_below_is_part_of_a_key(self):
        self.write("images/main.py", "")
        def keys(packages):
            self.described("low", f"base: debian\npackages: [{packages}]")
            d = self.described("some", "base: low\ncode: {main.py: /srv/main.py}")
            return layers.key(d), layers.layer_key(d)
        first = keys("a")
        self.assertEqual(keys("a"), first)
        second = keys("b")
        self.assertNotEqual(second[0], first[0])
        self.assertNotEqual(second[1], first[1])
        with mock.patch("debian.release", lambda: "trixie"):
            self.assertNotEqual(keys("b"), second)
        with mock.patch("layers.VERSION", layers.VERSION + 1):
            self.assertNotEqual(keys("b"), second)

    def test_packages_are_a_layer_that_code_does_not_change(self):
        self.write("images/main.py", "1")
        text = "base: debian\npackages: [a]\ncode: {main.py: /srv/main.py}"
        one, other = self.described("one", text), self.described("other", text.replace("/srv/main.py", "/other.py"))
        self.assertEqual(layers.layer_key(one), layers.layer_key(other))
        self.assertNotEqual(layers.key(one), layers.key(other))

    def test_code_is_a_file_or_a_directory(self):
        os.mkfifo(self.path("images/pipe"))
        with self.assertRaisesRegex(Wrong, "neither a file nor a directory"):
            layers.key(self.described("some", "base: debian\ncode: {pipe: /srv/pipe}"))


class Roots(Case):
    def make(self, fill, wanted="key"):
        return layers.make(layers.place("some"), wanted, Log("some", layers.place("some.log")), fill)

    def fill(self, text):
        def fill(directory):
            self.fills += 1
            os.mkdir(directory)
            with open(directory + "/file", "w") as f:
                f.write(text)
        self.fills = 0
        return fill

    def test_nothing_is_done_twice(self):
        fill = self.fill("one")
        self.assertEqual(self.make(fill), self.path("roots/some"))
        self.make(fill)
        self.assertEqual((self.fills, self.read("roots/some/file")), (1, "one"))
        self.make(self.fill("two"), "other key")
        self.assertEqual(self.read("roots/some/file"), "two")
        # Who may not make one may ask for one that is there.
        with mock.patch("layers.os.geteuid", lambda: 1000):
            self.make(fill, "other key")
            with self.assertRaisesRegex(Wrong, "^some: .* needs root .*sudo"):
                self.make(fill, "third key")

    def test_no_half_root_is_left(self):
        self.make(self.fill("one"))
        def fail(directory):
            os.mkdir(directory)
            os.mkdir(directory + ".home")
            raise Wrong("x")
        with self.assertRaises(Wrong):
            self.make(fail, "other key")
        self.assertEqual(sorted(os.listdir(self.path("roots"))), ["some", "some.key", "some.lock"])
        # The old one is what it was, and is not taken for the new one.
        fill = self.fill("two")
        self.make(fill)
        self.assertEqual((self.fills, self.read("roots/some/file")), (0, "one"))
        self.make(fill, "other key")
        self.assertEqual(self.read("roots/some/file"), "two")

    def test_what_a_killed_maker_left_is_removed(self):
        self.write("roots/some.tmp/half", "")
        self.write("roots/some.tmp.home/half", "")
        self.make(self.fill("one"))
        self.assertEqual(sorted(os.listdir(self.path("roots"))), ["some", "some.key", "some.lock"])
        self.assertEqual(os.listdir(self.path("roots/some")), ["file"])

    def test_layers_that_nobody_names_are_removed(self):
        for name in ("old", "shared"):
            self.write(f"roots/layers/{name}/file", "")
            self.write(f"roots/layers/{name}.key", name)
        self.write("roots/layers/begun.tmp/file", "")
        self.write("roots/other.layers", "shared\n")
        self.write("roots/some.layers", "old\n")
        d = self.described("some", "base: busybox")
        layers.remember(d)
        self.assertEqual(self.read("roots/some.layers"), layers.base_layer(d) + "\n")
        left = [name for name in os.listdir(self.path("roots/layers")) if not name.endswith(".lock")]
        self.assertEqual(sorted(left), ["begun.tmp", "shared", "shared.key"])

    def test_a_layer_that_is_being_made_stays(self):
        self.write("roots/layers/old.key", "old")
        with layers.locked(layers.place("layers", "old")):
            layers.remember(self.described("some", "base: busybox"))
        self.assertTrue(os.path.exists(self.path("roots/layers/old.key")))

    def test_which_root_a_container_has(self):
        self.write("images/main.py", "")
        code = "code: {main.py: /srv/main.py}"
        made = []
        with mock.patch("layers.make", lambda path, wanted, *_: made.append(wanted) or path):
            base = layers.stack(self.described("low", "base: debian\npackages: [a]"))
            self.assertEqual((base[0], base[2]), (self.path("roots/low"), []))
            # Code alone is laid over what is there, also twice.
            one = self.described("one", f"base: low\n{code}")
            two = self.described("two", f"base: one\n{code}")
            self.assertEqual(layers.stack(one), base[:2] + ([one],))
            tree, key, coded = layers.stack(two)
            self.assertEqual((tree, key, [d.name for d in coded]), base[:2] + (["one", "two"],))
            # Those with the same packages share them.
            a, b = (self.described(name, f"base: debian\npackages: [a]\n{code}") for name in ("a", "b"))
            self.assertEqual(layers.stack(a)[:2], layers.stack(b)[:2])
            self.assertTrue(layers.stack(a)[0].startswith(self.path("roots/layers")))
            built = self.described("built", f"base: low\n{code}\nbuild: [make]")
            self.assertEqual(layers.stack(built), (self.path("roots/built"), layers.key(built), []))


class Code(Case):
    def test_symbolic_links_of_a_root_stay_in_it(self):
        tree = self.path("tree")
        os.makedirs(tree + "/usr/bin")
        for target, link in (("usr/bin", "bin"), ("/usr", "absolute"), ("../../../../etc", "usr/out"), ("loop", "loop")):
            os.symlink(target, f"{tree}/{link}")
        for path, there in (("/bin/x", "/usr/bin/x"), ("/absolute/bin", "/usr/bin"), ("/usr/out/passwd", "/etc/passwd"), ("/none/x", "/none/x")):
            self.assertEqual(layers.inside(tree, path), tree + there)
        with self.assertRaisesRegex(Wrong, "too many symbolic links"):
            layers.inside(tree, "/loop/x")

    def test_code_is_laid_over_a_root(self):
        self.write("images/more/a", "a")
        self.write("images/more/__pycache__/a.pyc", "")
        self.write("images/main.py", "main")
        os.symlink("a", self.path("images/more/link"))
        os.makedirs(self.path("tree/usr/bin"))
        os.symlink("usr/bin", self.path("tree/bin"))
        d = self.described("some", "base: busybox\ncode: {more: /bin, main.py: /bin/sub/main.py}")
        os.mkdir(self.path("staged"))
        layers.lay(d, self.path("staged"), self.path("tree"))
        self.assertEqual(self.read("staged/usr/bin/sub/main.py") + self.read("staged/usr/bin/a"), "maina")
        self.assertEqual(os.readlink(self.path("staged/usr/bin/link")), "a")
        self.assertFalse(os.path.exists(self.path("staged/usr/bin/__pycache__")))
        for wrong, said in (("more: /file", "/file is a file in the root"), ("main.py: /bin", "/bin is a directory in the root")):
            self.write("tree/file", "")
            with self.assertRaisesRegex(Wrong, said):
                layers.lay(self.described("some", f"base: busybox\ncode: {{{wrong}}}"), self.path("tree"), self.path("tree"))


@unittest.skipUnless(os.getuid() == 0, "needs root (mounts, chroot)")
class InARoot(Case):
    """Commands in a root of busybox alone."""

    def setUp(self):
        super().setUp()
        self.root, self.log = self.path("tree"), Log("some", self.path("some.log"))
        # What a root is made of that takes a mount to reach must not be left.
        self.addCleanup(lambda: self.assertEqual(mounts_below(self.directory), []))
        mock.patch.stopall()
        debian.make_busybox(self.root, self.log)

    def tree(self, directory):
        return sorted(os.path.relpath(os.path.join(place, name), self.path("tree", directory))
                      for place, _, files in os.walk(self.path("tree", directory)) for name in files)

    def test_a_command_has_what_a_program_needs_and_leaves_only_its_files(self):
        with Steps(self.root, self.log) as steps:
            steps.shell("one", "test -e /proc/self/status; echo x >/dev/null; test $$ -lt 10; test -d $HOME; echo kept >/root/kept; sleep 100 &")
            with self.assertRaisesRegex(Failed, "some: two failed .exit code 1."):
                steps.shell("two", "echo half >/root/half; false; echo more >/root/more")
        self.assertEqual(self.tree("root"), ["half", "kept"])
        self.assertEqual((self.tree("dev"), self.tree("proc"), self.tree("mnt"), self.tree("etc")), ([], [], [], ["group", "passwd"]))
        self.assertEqual(sorted(os.listdir(self.directory)), ["images", "some.log", "tree"])

    def test_what_is_for_one_command_only_does_not_stay(self):
        self.write("tree/usr/local/old/a", "a")
        self.write("tree/usr/local/old/b", "b")
        with Steps(self.root, self.log) as steps:
            script = "echo x >/usr/helper; rm /usr/local/old/a; rm -r /bin/vi; mkdir /usr/local/new; echo $1 >/usr/local/new/c"
            steps.run("one", "sh", "-ec", script, "sh", "word", taken="/usr/local")
            with self.assertRaises(Failed):
                steps.run("two", "sh", "-ec", "echo x >/usr/local/d; false", taken="/usr/local")
        self.assertEqual(self.tree("usr"), ["local/new/c", "local/old/b"])
        self.assertEqual(self.read("tree/usr/local/new/c"), "word\n")
        self.assertTrue(os.path.islink(self.path("tree/bin/vi")))


class Running(Case):
    def test_a_step_that_fails_is_named_with_the_end_of_its_log(self):
        log = Log("some", self.path("some.log"))
        with log.step("a step that works"):
            log.run("one", ["sh", "-c", "echo before"])
        self.assertRegex(self.said.getvalue(), r"^image: some: a step that works … [0-9]+\.[0-9] s\n$")
        with self.assertRaisesRegex(Failed, f"^some: two failed .exit code 3., see {self.path('some.log')}$") as raised, log.step("another"):
            log.run("two", ["sh", "-c", "seq 30; exit 3"])
        self.assertEqual(raised.exception.tail, [str(n) for n in range(11, 31)])
        self.assertIn("image: some: another … failed\n", self.said.getvalue())
        self.assertEqual(self.read("some.log").splitlines()[:3], ["== one", "before", "== two"])
        with self.assertRaisesRegex(Wrong, "some: x: no-such-program is not installed"):
            log.run("x", ["no-such-program"])

    def test_the_machines_configuration_is_lent_and_taken_back(self):
        self.write("home/.npmrc", "registry=http://mirror/\n")
        self.write("pem", "")
        settings = {"HOME": self.path("home"), "PIP_INDEX_URL": "http://mirror/", "PIP_CERT": self.path("pem"), "https_proxy": "proxy", "SECRET": "x"}
        with mock.patch.dict(os.environ, settings, clear=True), Steps(self.path("tree"), None) as steps:
            self.assertEqual(steps.environment["PIP_INDEX_URL"], "http://mirror/")
            self.assertEqual(steps.environment["https_proxy"], "proxy")
            self.assertNotIn("SECRET", steps.environment)
            binds = dict(zip(steps.binds[1::2], steps.binds[::2]))
            self.assertEqual(binds[steps.environment["PIP_CERT"]], self.path("pem"))
            self.assertEqual(binds[steps.environment["HOME"] + "/.npmrc"], self.path("home/.npmrc"))
            for place in binds:
                self.assertTrue(os.path.exists(self.path("tree.home") + place.removeprefix("/mnt")))
        self.assertFalse(os.path.exists(self.path("tree.home")))


if __name__ == "__main__":
    unittest.main()
