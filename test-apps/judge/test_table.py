"""Tests of the judgement: python3 -m unittest discover -s test-apps/judge."""
import tempfile
import unittest

import table


class Judge(unittest.TestCase):
    def test_what_passes_natively_has_to_pass_here(self):
        native = {"a": "pass", "b": "pass", "c": "skip", "d": "failed"}
        passed, failed = table.judge({"native": [native], "quark": [{"a": "pass", "b": "skip", "c": "failed", "d": "pass"}]})
        self.assertEqual((passed, failed), (["a", "b"], {"b": "skip"}))

    def test_a_case_that_is_missing_has_failed(self):
        self.assertEqual(table.judge({"native": [{"a": "pass"}], "quark": [{}]})[1], {"a": "not run"})

    def test_it_fails_here_if_it_does_so_most_times(self):
        native = [{"a": "pass", "b": "pass"}] * 3
        runs = [{"a": "failed", "b": "failed"}, {"a": "pass", "b": "failed"}, {"a": "pass", "b": "pass"}]
        self.assertEqual(table.judge({"native": native, "quark": runs})[1], {"b": "failed"})

    def test_it_passes_natively_if_it_does_so_each_time(self):
        runs = {"native": [{"a": "pass"}, {"a": "failed"}], "quark": [{"a": "failed"}, {"a": "failed"}]}
        self.assertEqual(table.judge(runs), ([], {}))

    def test_parts_that_were_not_run_tell_nothing(self):
        self.assertEqual(table.judge({}), ([], {}))

    def test_a_table_keeps_reasons_and_what_was_not_run(self):
        class Results:
            parts = {"p": {"native": [{"a": "pass", "b": "pass"}], "quark": [{"a": "pass", "b": "failed"}]}}

        with tempfile.NamedTemporaryFile("w+", suffix=".csv") as file:
            file.write("part,case,native,quark,reason\no,x,pass,skip,why\np,a,pass,failed,old\np,b,pass,skip,because\n")
            file.flush()
            self.assertEqual(table.write("some", Results, file.name), (2, 1))
            with open(file.name) as again:
                self.assertEqual(again.read().splitlines()[1:], ["o,x,pass,skip,why", "p,b,pass,failed,because"])


if __name__ == "__main__":
    unittest.main()
