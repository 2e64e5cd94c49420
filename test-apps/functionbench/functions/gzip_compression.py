"""A file of n MiB, of which half is chance, compressed to another."""
import gzip
import os
import random
import tempfile

PARAMETERS = {"n": (2, 1, 100)}
MIB = 1 << 20


def handle(parameters):
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        plain, packed = os.path.join(directory, "plain"), os.path.join(directory, "packed.gz")
        with open(plain, "wb") as f:
            for _ in range(parameters["n"]):
                f.write(dice.randbytes(MIB // 2) + b"FunctionBench\n\0\1" * (MIB // 32))
        with open(plain, "rb") as source, gzip.GzipFile(packed, "wb", compresslevel=6, mtime=0) as target:
            while block := source.read(MIB):
                target.write(block)
        with gzip.open(packed) as f, open(plain, "rb") as g:
            while block := g.read(MIB):
                if f.read(MIB) != block:
                    raise OSError("what was compressed is not what comes back")
        return [os.path.getsize(plain), os.path.getsize(packed)]
