"""The frame: what it makes of queries, of results, and over HTTP."""
import json
import os
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import frame  # noqa: E402

KNOWN = {"n": (5, 1, 100), "image": ("small", ["small", "large"])}


class Parameters(unittest.TestCase):
    def test_defaults_and_values(self):
        self.assertEqual(frame.parameters_of("", KNOWN), {"n": 5, "image": "small"})
        self.assertEqual(frame.parameters_of("n=100&image=large", KNOWN), {"n": 100, "image": "large"})

    def test_what_is_wrong_is_said(self):
        for query, said in [("n=0", "from 1 to 100"), ("n=101", "from 1 to 100"), ("n=", "whole number"), ("n=-1", "whole number"), ("n=1.5", "whole number"),
                            ("n=²", "whole number"), ("n=" + "9" * 5000, "whole number"), ("image=huge", "one of small, large"),
                            ("m=1", "there are image, n"), ("n", "not name=value")]:
            with self.assertRaises(frame.Bad, msg=query) as caught:
                frame.parameters_of(query, KNOWN)
            self.assertIn(said, str(caught.exception), query)

    def test_a_function_without_parameters(self):
        with self.assertRaisesRegex(frame.Bad, "there are none"):
            frame.parameters_of("n=1", {})


class Digest(unittest.TestCase):
    def test_last_digits_of_floats_do_not_count(self):
        self.assertEqual(frame.digest([0.1 + 0.2, {"a": -0.0}]), frame.digest([0.3, {"a": 0.0}]))
        self.assertNotEqual(frame.digest([0.30001]), frame.digest([0.3]))

    def test_bytes_and_structure_count(self):
        self.assertEqual(len({frame.digest(r) for r in (b"a", b"b", "a", ["a"], {"a": 1}, {"a": 2}, 1, None)}), 8)


FUNCTION = """
PARAMETERS = {"n": (2, 0, 9)}
ready = None
def setup():
    global ready
    ready = 10
def handle(parameters):
    return ready // parameters["n"]
"""


class Http(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        path = os.path.join(self.directory.name, "divide.py")
        with open(path, "w") as f:
            f.write(FUNCTION)
        self.server = frame.serve(path, "127.0.0.1", 0)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.server_address[1]}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def test_answers(self):
        status, text = self.get("/?n=5")
        answer = json.loads(text)
        self.assertEqual((status, answer["function"], answer["parameters"], answer["served"]), (200, "divide", {"n": 5}, 1))
        self.assertEqual(answer["digest"], frame.digest(2))
        self.assertGreaterEqual(answer["seconds"], 0)
        self.assertEqual(json.loads(self.get("/")[1])["served"], 2)

    def test_refusals_and_failures(self):
        self.assertEqual(self.get("/?n=10"), (400, "n=10: a whole number from 0 to 9\n"))
        self.assertEqual(self.get("/other")[0], 404)
        status, text = self.get("/?n=0")
        self.assertEqual(status, 500)
        self.assertIn("ZeroDivisionError", text)
        self.assertEqual(json.loads(self.get("/")[1])["served"], 1)


if __name__ == "__main__":
    unittest.main()
