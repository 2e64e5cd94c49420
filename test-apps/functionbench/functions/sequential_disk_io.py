"""A file of n MiB written in blocks of `kib` KiB, brought to the disk, and read back."""
import os
import tempfile

PARAMETERS = {"n": (16, 1, 1024), "kib": (64, 1, 16_384)}


def handle(parameters):
    size, total = parameters["kib"] << 10, parameters["n"] << 20
    block = bytes(i * 13 % 256 for i in range(4096)) * (size // 1024)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "file")
        with open(path, "wb", buffering=0) as f:
            for at in range(0, total, size):
                f.write(block[at % 4099:][:min(size, total - at)])
            os.fsync(f.fileno())
        read = wrong = 0
        with open(path, "rb", buffering=0) as f:
            while data := f.read(size):
                wrong += data != block[read % 4099:][:len(data)]
                read += len(data)
    if wrong:
        raise OSError(f"{wrong} blocks are not what was written")
    return [read, wrong]
