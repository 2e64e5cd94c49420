"""Sines, cosines and square roots of the numbers below n."""
import math

PARAMETERS = {"n": (200_000, 1, 100_000_000)}


def handle(parameters):
    sines = cosines = roots = 0.0
    for i in range(parameters["n"]):
        sines += math.sin(i)
        cosines += math.cos(i)
        roots += math.sqrt(i)
    return [sines, cosines, roots]
