"""A system of n linear equations."""
import numpy

PARAMETERS = {"n": (1024, 1, 8192)}


def handle(parameters):
    n = parameters["n"]
    matrix = numpy.random.default_rng(n).random((n, n)) - 0.5
    # Of which the solution is known: 1, 2, … n.
    expected = numpy.arange(1.0, n + 1)
    found = numpy.linalg.solve(matrix, matrix @ expected)
    if not numpy.allclose(found, expected, rtol=1e-6):
        raise ArithmeticError("the solution is not the known one")
    return [float(found.sum()), float(found[-1])]
