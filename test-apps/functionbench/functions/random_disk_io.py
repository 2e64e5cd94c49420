"""n blocks of 4 KiB written at random places of a file of `mib` MiB, brought to the disk, and read back in another order."""
import hashlib
import os
import random
import tempfile

PARAMETERS = {"n": (1000, 1, 1_000_000), "mib": (16, 1, 1024)}
BLOCK = 4096


def handle(parameters):
    dice = random.Random(2)
    blocks = (parameters["mib"] << 20) // BLOCK
    written, sum_ = {}, hashlib.sha256()
    with tempfile.TemporaryFile(buffering=0) as f:
        f.truncate(blocks * BLOCK)
        for i in range(parameters["n"]):
            at = dice.randrange(blocks)
            written[at] = i.to_bytes(8, "little") * (BLOCK // 8)
            os.pwrite(f.fileno(), written[at], at * BLOCK)
        os.fsync(f.fileno())
        for _ in range(parameters["n"]):
            at = dice.randrange(blocks)
            data = os.pread(f.fileno(), BLOCK, at * BLOCK)
            if data != written.get(at, bytes(BLOCK)):
                raise OSError(f"block {at} is not what was written")
            sum_.update(data)
    return sum_.digest()
