"""The product of two random n × n matrices."""
import numpy

PARAMETERS = {"n": (1024, 1, 8192)}


def handle(parameters):
    n = parameters["n"]
    dice = numpy.random.default_rng(n)
    product = dice.random((n, n)) @ dice.random((n, n))
    return [float(product.sum()), float(product.trace()), float(product[0, -1])]
