"""Functions that need no more than the standard library: small work, of which the result is known."""
import hashlib
import json
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)
import frame  # noqa: E402
import inputs  # noqa: E402


def module(name):
    return frame.load(os.path.join(HERE, "functions", name + ".py"))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Functions(unittest.TestCase):
    def result(self, name, query):
        loaded = module(name)
        return loaded.handle(frame.parameters_of(query, loaded.PARAMETERS))

    def test_float_operation(self):
        sines, cosines, roots = self.result("float_operation", "n=2")
        self.assertEqual((round(sines, 6), round(cosines, 6), roots), (0.841471, 1.540302, 1.0))

    def test_dd(self):
        self.assertEqual(self.result("dd", "n=3&kib=4"), [3 * 4096, sha256(bytes(3 * 4096))])

    def test_gzip_compression(self):
        plain, packed = self.result("gzip_compression", "n=1")
        self.assertEqual(plain, 1 << 20)
        # The half that is chance stays, the other goes.
        self.assertTrue(1 << 19 < packed < (1 << 19) + 5000, packed)

    def test_sequential_disk_io(self):
        self.assertEqual(self.result("sequential_disk_io", "n=1&kib=3"), [1 << 20, 0])

    def test_random_disk_io_depends_on_its_work_alone(self):
        few = self.result("random_disk_io", "n=20&mib=1")
        self.assertEqual(few, self.result("random_disk_io", "n=20&mib=1"))
        self.assertNotEqual(few, self.result("random_disk_io", "n=21&mib=1"))

    def test_json_dumps_loads(self):
        loaded = module("json_dumps_loads")
        with tempfile.TemporaryDirectory() as directory:
            inputs.records(directory)
            loaded.INPUTS = directory
            loaded.setup()
        written = loaded.handle({"n": 2})
        self.assertEqual(json.loads(written), json.loads(loaded.text))
        self.assertEqual(len(json.loads(written)), 2000)

    def test_hello_is_the_same_in_every_language(self):
        self.assertEqual(self.result("hello", ""), b"hello, world")
        for name in os.listdir(os.path.join(HERE, "hello")):
            with open(os.path.join(HERE, "hello", name)) as f:
                self.assertIn('return "hello, world"', f.read(), name)


class Inputs(unittest.TestCase):
    def test_they_are_the_same_each_time(self):
        made = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as directory:
                inputs.records(directory)
                inputs.reviews(directory)
                found = {}
                for name in sorted(os.listdir(directory)):
                    with open(os.path.join(directory, name), "rb") as f:
                        found[name] = f.read()
                made.append(found)
        self.assertEqual(made[0], made[1])
        self.assertEqual(sorted(made[0]), ["records.json", "reviews.tsv"])
        lines = made[0]["reviews.tsv"].decode().splitlines()
        self.assertEqual({line.split("\t")[0] for line in lines}, {"0", "1"})
        self.assertEqual(len(lines), 4000)


if __name__ == "__main__":
    unittest.main()
