"""n blocks of `kib` KiB copied from /dev/zero to a file by dd(1)."""
import hashlib
import os
import subprocess
import tempfile

PARAMETERS = {"n": (16, 1, 1024), "kib": (1024, 1, 65_536)}


def handle(parameters):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "copy")
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", f"bs={parameters['kib']}k", f"count={parameters['n']}"], check=True, capture_output=True)
        with open(path, "rb") as f:
            return [os.path.getsize(path), hashlib.file_digest(f, "sha256").hexdigest()]
