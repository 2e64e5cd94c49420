"""The runner's own judgement: which functions there are, and what it takes for a failure."""
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "rootfs")]
import catalog  # noqa: E402
import description  # noqa: E402
import frame  # noqa: E402
import report  # noqa: E402


def life(*digests, **more):
    return {"cold_s": 0.1, "digests": list(digests), **more}


class Judgement(unittest.TestCase):
    def result(self, **by_runtime):
        return {"functions": {"matmul": by_runtime}, "not_built": {}, "versions": {n: "1" for n in by_runtime}, "rounds": 1}

    def test_equal_answers_are_right(self):
        self.assertEqual(report.failures(self.result(runc=[life("a", "a")], quark=[life("a", "a", "a")])), [])

    def test_another_answer_is_wrong(self):
        result = self.result(runc=[life("a", "a")] * 2, quark=[life("b", "b")])
        self.assertEqual(report.failures(result), ["matmul on quark: wrong answer: 2 of 2 have another digest"])

    def test_an_answer_that_changes_is_wrong_with_one_runtime_too(self):
        result = self.result(quark=[life("a", "a", "c")])
        self.assertEqual(report.failures(result), ["matmul on quark: wrong answer: 1 of 3 have another digest"])

    def test_what_failed_is_named(self):
        result = self.result(runc=[life("a")], quark=[life(failed="no answer")])
        result["not_built"]["dd"] = "no root"
        self.assertEqual(report.failures(result), ["dd: no root", "matmul on quark: no answer"])
        self.assertIn("- matmul on quark: no answer", report.markdown(result))

    def test_medians_in_the_table(self):
        result = self.result(quark=[life("a", asleep_bytes=n << 20) for n in (1, 9, 2)])
        self.assertIn("| matmul | 100 | – | – | 2.0 | – | – | – |", report.table(result))


class Catalog(unittest.TestCase):
    def test_all_descriptions_are_right_and_their_functions_there(self):
        for case in catalog.cases():
            found = description.load(case.description)
            self.assertEqual(found.port, 8080, case.name)
            self.assertTrue(found.memory_bytes and found.cpus, case.name)
            self.assertIn(found.command[-1], [*found.code.values(), "Hello", "/function/hello"], case.name)

    def test_requests_are_understood(self):
        for case in catalog.cases():
            name = os.path.basename(case.description).removesuffix(".yaml").replace("-", "_")
            path = os.path.join(HERE, "functions", name + ".py")
            if not os.path.exists(path):
                self.assertTrue(name.startswith("hello_"), name)
                continue
            with open(path) as f:
                text = f.read()
            values = {}
            # Not all modules can be loaded here: only their parameters are.
            exec(re.search(r"^PARAMETERS = .*$", text, re.M)[0].replace("LANGUAGES", "18"), values)
            frame.parameters_of(case.query.lstrip("/?"), values["PARAMETERS"])

    def test_the_readme_has_them_all(self):
        with open(os.path.join(HERE, "README.md")) as f:
            rows = re.findall(r"^\| `([a-z-]+)` \|", f.read(), re.M)
        self.assertEqual(sorted(rows), [case.name for case in catalog.cases()])

    def test_unknown_names_are_refused(self):
        with self.assertRaisesRegex(ValueError, "there is no nothing; there are .*matmul"):
            catalog.chosen(["matmul", "nothing"])
        self.assertEqual([case.name for case in catalog.chosen(["matmul", "dd"])], ["dd", "matmul"])


if __name__ == "__main__":
    unittest.main()
