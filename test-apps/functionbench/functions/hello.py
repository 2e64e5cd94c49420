"""A greeting."""

PARAMETERS = {}


def handle(parameters):
    return b"hello, world"
