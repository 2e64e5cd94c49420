"""Somebody who locks files: evaluates each line of its standard input and prints what comes of it."""

import errno
import fcntl
import os
import resource
import signal
import sqlite3
import struct
import sys
import time

COMMANDS = {
    "posix": (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK),
    "ofd": (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, fcntl.F_OFD_GETLK),
}
TYPES = {"sh": fcntl.F_RDLCK, "ex": fcntl.F_WRLCK, "un": fcntl.F_UNLCK}
FLOCKS = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX, "un": fcntl.LOCK_UN}
PLACE = sys.argv[1]
OPEN = {}


def fd(name, flags=os.O_RDWR):
    """A descriptor under a name that stays: the file's, with a number after it if there are several."""
    if name not in OPEN:
        OPEN[name] = os.open(PLACE + name.rstrip("0123456789"), flags | os.O_CREAT, 0o666)
    return OPEN[name]


def close(name):
    os.close(OPEN.pop(name))
    return "ok"


def record(kind, command, name, how, start, length):
    lock = struct.pack("hhqqi4x", TYPES[how], os.SEEK_SET, start, length, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd(name), COMMANDS[kind][command], lock))


def lock(kind, how, name="f", start=0, length=0, wait=False):
    try:
        if kind == "flock":
            fcntl.flock(fd(name), FLOCKS[how] | (0 if wait else fcntl.LOCK_NB))
        else:
            record(kind, int(wait), name, how, start, length)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def wait(*args, **more):
    print("waits", flush=True)
    return lock(*args, wait=True, **more)


class Alarm(Exception):
    pass


def on_alarm(*_):
    raise Alarm


def alarmed(*args, **more):
    """A wait that SIGALRM ends."""
    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        return wait(*args, **more)
    except Alarm:
        return "interrupted"


def test(kind, name="f", start=0, length=0):
    """Type, range and process of what is in the way."""
    kind, _, start, length, pid = record(kind, 2, name, "ex", start, length)
    return next(n for n, t in TYPES.items() if t == kind), start, length, pid


def child(*args):
    """A process that locks and stays."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, lock(*args).encode())
        while True:
            signal.pause()
    os.close(writer)
    result = os.read(reader, 100).decode()
    os.close(reader)
    return pid if result == "ok" else result


def waiting_child(*args):
    """A process that waits for a lock."""
    pid = os.fork()
    if pid == 0:
        lock(*args, wait=True)
        os._exit(0)
    while open(f"/proc/{pid}/stat").read().rsplit(")")[1].split()[0] != "S":
        time.sleep(0.01)
    time.sleep(0.1)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "ok"


def many_ranges(kind, most):
    """Locks of every second byte, until that is refused."""
    for i in range(most):
        result = lock(kind, "ex", "f", 2 * i, 1)
        if result != "ok":
            return i, result
    return most, "ok"


def many_files(most):
    """Open files, each of which is locked."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 100, most + 100))
    for i in range(most):
        try:
            result = lock("flock", "sh", f"f{i}")
        except OSError as error:
            result = errno.errorcode[error.errno]
        if result != "ok":
            return i, result
    return most, "ok"


def prepare():
    base = sqlite3.connect(PLACE + "base")
    base.executescript(
        "CREATE TABLE counter (value INTEGER); INSERT INTO counter VALUES (0);"
        "CREATE TABLE entries (who TEXT, number INTEGER)"
    )
    base.close()
    return "ok"


def count(name, times):
    """Transactions that read a counter and write it, and add a row."""
    base = sqlite3.connect(PLACE + "base", timeout=120, isolation_level=None)
    for i in range(times):
        base.execute("BEGIN IMMEDIATE" if i % 2 else "BEGIN EXCLUSIVE")
        (value,) = base.execute("SELECT value FROM counter").fetchone()
        base.execute("UPDATE counter SET value = ?", (value + 1,))
        base.execute("INSERT INTO entries VALUES (?, ?)", (name, i))
        base.execute("COMMIT")
    base.close()
    return "ok"


def add_under_lock(kind, times):
    """A counter in a file that is read and written under a lock that is waited for."""
    for _ in range(times):
        if lock(kind, "ex", wait=True) != "ok":
            return "no lock"
        value = int(os.pread(fd("f"), 20, 0) or b"0")
        os.pwrite(fd("f"), b"%d" % (value + 1), 0)
        lock(kind, "un")
    return "ok"


for line in sys.stdin:
    print(eval(line), flush=True)
