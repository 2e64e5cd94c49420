"""Runs CPython's regrtest, and writes what becomes of each test to a file, a line each, as soon as it is known: also of those before a
test that does not end. Usage: cases.py FILE REGRTEST-ARGUMENTS…"""
import json
import os
import sys
import unittest
from test import libregrtest
from test.support import testresult

PROCESS = os.getpid()


def tell(test, result):
    # Children that tests fork have this object too.
    if os.getpid() == PROCESS:
        os.write(file, json.dumps([test.id(), result]).encode() + b"\n")


def first_line(error):
    return f"{error[0].__name__}: {error[1]}".strip().splitlines()[0][:160]


class Result(testresult.RegressionTestResult):
    def startTest(self, test):
        tell(test, "begun")
        super().startTest(test)

    def addSuccess(self, test):
        tell(test, "pass")
        super().addSuccess(test)

    def addExpectedFailure(self, test, error):
        tell(test, "pass")
        super().addExpectedFailure(test, error)

    def addUnexpectedSuccess(self, test):
        tell(test, "unexpected success")
        super().addUnexpectedSuccess(test)

    def addSkip(self, test, reason):
        tell(test, "skip")
        super().addSkip(test, reason)

    def addError(self, test, error):
        tell(test, first_line(error))
        super().addError(test, error)

    def addFailure(self, test, error):
        tell(test, first_line(error))
        super().addFailure(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            tell(test, first_line(error))
        unittest.TextTestResult.addSubTest(self, test, subtest, error)


# Processes that multiprocessing starts import this file too.
if __name__ == "__main__":
    path = sys.argv.pop(1)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.path.pop(0)
    testresult.RegressionTestResult = Result
    libregrtest.main()
