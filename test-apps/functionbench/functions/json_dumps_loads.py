"""2,000 customers (0.6 MB) read from JSON and written again, n times."""
import json
import os

PARAMETERS = {"n": (4, 1, 10_000)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
text = None


def setup():
    global text
    with open(os.path.join(INPUTS, "records.json")) as f:
        text = f.read()


def handle(parameters):
    written = text
    for _ in range(parameters["n"]):
        written = json.dumps(json.loads(written), indent=1)
    return written.encode()
