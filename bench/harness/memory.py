"""Memory as the host sees it: of a cgroup, of a group of processes, of a sandbox's store."""
import ctypes
import mmap
import os
import stat

KCMP = 312  # system call number on x86-64
KCMP_VM = 1
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p


def cgroup_root():
    """(version, directory) of the hierarchy that has the memory controller."""
    v2 = None
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, _, right = line.partition(" - ")
            point = left.split()[4]
            kind, _, options = right.split()[:3]
            if kind == "cgroup" and "memory" in options.split(","):
                return 1, point
            if kind == "cgroup2":
                v2 = point
    if v2 is None:
        raise SystemExit("no cgroup hierarchy with the memory controller is mounted")
    return 2, v2


def _number(path):
    with open(path) as f:
        return int(f.read())


def cgroup_bytes(path):
    """What the cgroup `path` (below the root) holds, kernel memory included, without clean page cache: that is the
    host's to take back at any moment."""
    version, root = cgroup_root()
    directory = os.path.join(root, path.lstrip("/"))
    with open(os.path.join(directory, "memory.stat")) as f:
        s = {k: int(v) for k, v in (line.split() for line in f)}
    if version == 1:
        usage = _number(os.path.join(directory, "memory.usage_in_bytes"))
        clean = s["total_cache"] - s["total_shmem"] - s["total_dirty"] - s["total_writeback"]
    else:
        usage = _number(os.path.join(directory, "memory.current"))
        clean = s["file"] - s["shmem"] - s["file_dirty"] - s["file_writeback"]
    return usage - max(clean, 0)


def shared_bytes(path):
    """What the cgroup `path` holds of files in memory, memfd_create(2) included."""
    version, root = cgroup_root()
    with open(os.path.join(root, path.lstrip("/"), "memory.stat")) as f:
        s = {k: int(v) for k, v in (line.split() for line in f)}
    return s["total_shmem" if version == 1 else "shmem"]


def cgroup_processes(path):
    _, root = cgroup_root()
    found = []
    for directory, _, _ in os.walk(os.path.join(root, path.lstrip("/"))):
        with open(os.path.join(directory, "cgroup.procs")) as f:
            found += [int(line) for line in f]
    return found


def descendants(pid):
    """The process and everything below it."""
    found, queue = [], [pid]
    while queue:
        p = queue.pop()
        found.append(p)
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{task}/children") as f:
                    queue += [int(c) for c in f.read().split()]
        except OSError:
            pass
    return found


def _same_address_space(a, b):
    answer = LIBC.syscall(KCMP, a, b, KCMP_VM, 0, 0)
    if answer != -1:
        return answer == 0
    # A kernel without kcmp: the same mappings and the same peak. Only processes that share memory agree in both.
    return _fingerprint(a) == _fingerprint(b)


def _fingerprint(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/status") as status:
            return maps.read(), [line for line in status if line.startswith(("VmHWM", "VmRSS", "VmSize", "VmData"))]
    except OSError:
        return pid


def pss_bytes(pids):
    """The proportional set size of the processes, each address space once."""
    total, counted = 0, []
    for pid in sorted(set(pids)):
        if any(_same_address_space(pid, other) for other in counted):
            continue
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                for line in f:
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            continue  # it has just ended, or is a zombie
        counted.append(pid)
    return total


def store_bytes(pid):
    """Disk space of the nameless files that a sandbox process holds open: its swap store."""
    return _nameless_bytes(pid, lambda target: not target.startswith("/memfd:"))


def memfd_bytes(pid):
    """What the files of memfd_create(2) hold that a process has open, whichever cgroup it is charged to."""
    return _nameless_bytes(pid, lambda target: target.startswith("/memfd:"))


def cached_bytes(directory):
    """What of a directory's files is in the page cache."""
    total = 0
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as f:
            size = os.fstat(f.fileno()).st_size
            if size == 0:
                continue
            address = LIBC.mmap(None, ctypes.c_size_t(size), 0, mmap.MAP_SHARED, f.fileno(), ctypes.c_long(0))
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            if address == ctypes.c_void_p(-1).value or LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) != 0:
                raise OSError(ctypes.get_errno(), f"mincore of {f.name}")
            LIBC.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
            total += sum(page & 1 for page in pages) * mmap.PAGESIZE
    return total


def _nameless_bytes(pid, is_wanted):
    total, seen = 0, set()
    directory = f"/proc/{pid}/fd"
    for fd in os.listdir(directory):
        path = os.path.join(directory, fd)
        try:
            s, target = os.stat(path), os.readlink(path)
        except OSError:
            continue
        if stat.S_ISREG(s.st_mode) and s.st_nlink == 0 and is_wanted(target) and (s.st_dev, s.st_ino) not in seen:
            seen.add((s.st_dev, s.st_ino))
            total += s.st_blocks * 512
    return total
