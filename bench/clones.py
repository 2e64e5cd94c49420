"""Images of containers: how long saving a Python function and making it anew takes, beside runsc and CRIU (by runc); many
containers of one image at once, and the memory that they hold asleep; images of several sizes.

Each answer is looked at: it has the count of requests that the saved process had served, and a digest of data that is
spread over all that it holds. Images are in the page cache when containers are made of them, of all runtimes alike."""
import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import time

import demo
from harness import http, memory, runtimes

SIZES_MB = {"hello": 0, "300": 300}
# How what a restore costs grows with the size of the image.
GROWTH_MB = [30, 300, 1000]
AT_ONCE = [20, 100]
WARM_REQUESTS = 5
# Containers made of each image, one after the other; their median counts.
RESTORES = 3
# Values of the dictionary that one request reads.
VALUES = 16
VALUES_A_MB = 1024
PORT = 8080  # in a network namespace of its own
CRIU = "CRIU 4 (3.17 does not work on Linux 6.18): apt-get install criu where the release has it"
CLONE_NEWNS, MS_PRIVATE_REC = 0x20000, 0x44000


def value(number):
    """As `hello.py` makes it."""
    return ("%08d" % number) * 110


class Expected:
    """What the function must answer next."""

    def __init__(self, megabytes, served=0):
        self.count, self.served = megabytes * VALUES_A_MB, served

    def question(self):
        """A path, and what looks at its answer. Other values each time, and so other pages than before."""
        self.served += 1
        right = f"hello {self.served}\n"
        if self.count == 0:
            return "/", lambda body: same(body, right)
        step = self.count // VALUES
        at = self.served * 37 % step
        digest = hashlib.sha256("".join(value(i) for i in range(at, self.count, step)).encode()).hexdigest()
        return f"/part?at={at}&step={step}", lambda body: same(body, f"{right[:-1]} {digest}\n")

    def ask(self, port):
        path, check = self.question()
        with http.connect(port) as c:
            check(http.ask(c, path, close=True))

    def ask_for_all(self, port):
        """Has the function read all that it holds."""
        self.served += 1
        total = self.count * (self.count - 1) // 2 + self.count * len(value(0))
        with http.connect(port) as c:
            same(http.ask(c, "/sum", close=True), f"{self.count} {total}\n")


def same(body, right):
    if body.decode() != right:
        raise runtimes.Failed(f"wrong answer: {body!r} instead of {right!r}")


def has_images(runtime):
    """Why it cannot take part, if so."""
    return CRIU if runtime.name == "runc" and shutil.which("criu") is None else None


def own_run():
    """A mount namespace of its own, with a /run in memory, as hosts have it: runtimes keep their state there, and CRIU what
    it finds out of the host's kernel, which it finds out anew each time where /run is on a disk. All of it is gone with the
    last process of the namespace."""
    c = http.LIBC
    if c.unshare(CLONE_NEWNS) or c.mount(None, b"/", None, MS_PRIVATE_REC, None) or c.mount(b"run", b"/run", b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "a mount namespace with /run in memory")


class Images:
    """Where images of a runtime are. A context manager: gone at the end."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.directory = os.path.join(runtime.scratch, "images")

    def __enter__(self):
        shutil.rmtree(self.directory, ignore_errors=True)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory, ignore_errors=True)

    def options(self, name):
        work = ["--work-path", os.path.join(self.directory, name + "-work")] if self.runtime.name == "runc" else []
        return ["--image-path", os.path.join(self.directory, name), *work]

    def save(self, container, name, *options):
        """Seconds of `checkpoint`. What is written of it is on the disk afterwards."""
        os.makedirs(os.path.join(self.directory, name))
        began = time.perf_counter()
        self.runtime.call("checkpoint", *self.options(name), *options, container.id)
        took = time.perf_counter() - began
        for file in os.scandir(os.path.join(self.directory, name)):
            with open(file.path, "rb") as f:
                os.fsync(f.fileno())
        return took

    def container(self, name, image, arguments, *options, begins=True, **more):
        path = self.runtime.bundle(name, "python", arguments, demo.FUNCTION, **more)
        return runtimes.Container(self.runtime, name, path, ["restore", *self.options(image), *options], True, begins)

    def lazily(self, name, image, arguments):
        """The container, with its memory to follow, and the process that sends it, if there is one. As runsc does it by
        itself, and CRIU by a server of pages, whose start counts."""
        if self.runtime.name != "runc":
            return self.container(name, image, arguments, "--background"), None
        work = os.path.join(self.directory, image + "-work")
        socket = os.path.join(work, "lazy-pages.socket")
        if os.path.exists(socket):
            os.remove(socket)
        began = time.perf_counter()
        server = subprocess.Popen(["criu", "lazy-pages", "-D", os.path.join(self.directory, image), "-W", work, "-o", "lazy.log"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(socket):
                if server.poll() is not None or time.perf_counter() - began > 10:
                    raise runtimes.Failed(f"criu lazy-pages does not listen; see {work}/lazy.log")
                time.sleep(0.0002)
            container = self.container(name, image, arguments, "--lazy-pages")
        except BaseException:
            server.kill()
            server.wait()
            raise
        container.began = began
        return container, server


def know_working_set(container, port, expected):
    """Has quark sleep and be woken by a request, as doc/snapshots.md says, so that an image knows what one needs."""
    demo.sleep(container, True)
    expected.ask(port)


def first_answer_ms(container, port, expected):
    return container.cold_s(port, *expected.question()) * 1e3


def life_round(runtime, job, failures):
    """Cold start, image, and the container of it, of one function."""
    megabytes, is_quark = SIZES_MB[job], runtime.name in ("quark", "before")
    port, expected, found = http.free_port(), Expected(SIZES_MB[job]), {}
    arguments = demo.command(port, megabytes)
    with Images(runtime) as images:
        with runtime.start("clone", "python", arguments, demo.FUNCTION, saved=True) as c:
            found["cold"] = first_answer_ms(c, port, expected)
            for _ in range(WARM_REQUESTS):
                expected.ask(port)
            if is_quark:
                found["checkpoint"] = images.save(c, "unprepared", "--leave-running") * 1e3
                unprepared = expected.served
                know_working_set(c, port, expected)
                images.save(c, "image")
            else:
                found["checkpoint"] = images.save(c, "image") * 1e3
        ways = {"restore": lambda: (images.container("clone", "image", arguments), None)}
        if is_quark:
            ways["unprepared"] = lambda: (images.container("clone", "unprepared", arguments), None)
        else:
            ways["lazy"] = lambda: images.lazily("clone", "image", arguments)
        for way, make in ways.items():
            if (runtime.name, f"clone: {job}, {way}") in failures:
                continue
            served = unprepared if way == "unprepared" else expected.served
            try:
                times = [restored_ms(make, port, Expected(megabytes, served)) for _ in range(RESTORES)]
                found[way] = statistics.median(times)
            except (runtimes.Failed, OSError, TimeoutError) as e:
                failures[(runtime.name, f"clone: {job}, {way}")] = str(e)
    if is_quark:
        found["lazy"] = found.get("restore")  # it knows no other way
    return {f"clone_{job}_{what}": ms for what, ms in found.items()}


def restored_ms(make, port, expected):
    """To the first answer of a container that `make` makes. All that it holds is looked at afterwards."""
    following = None
    try:
        container, following = make()
        with container:
            took = first_answer_ms(container, port, expected)
            if expected.count:
                expected.ask_for_all(port)
            expected.ask(port)
        return took
    finally:
        if following is not None:
            following.kill()
            following.wait()


class Growing:
    """Images of one function with more and more data, made once. A context manager."""

    def __init__(self, runtime):
        self.runtime, self.images, self.served, self.port = runtime, Images(runtime), {}, http.free_port()

    def __enter__(self):
        self.images.__enter__()
        for megabytes in GROWTH_MB:
            expected = Expected(megabytes)
            with self.runtime.start("grown", "python", demo.command(self.port, megabytes), demo.FUNCTION, saved=True) as c:
                first_answer_ms(c, self.port, expected)
                for _ in range(WARM_REQUESTS):
                    expected.ask(self.port)
                know_working_set(c, self.port, expected)
                self.images.save(c, str(megabytes))
            self.served[megabytes] = expected.served
        return self

    def __exit__(self, *_):
        self.images.__exit__()

    def round(self, is_last):
        found = {}
        for megabytes in GROWTH_MB:
            expected = Expected(megabytes, self.served[megabytes])
            with self.images.container("grown", str(megabytes), demo.command(self.port, megabytes)) as c:
                found[f"clone_size_{megabytes}"] = first_answer_ms(c, self.port, expected)
                if is_last:
                    expected.ask_for_all(self.port)
        return found


def clones_round(runtime, count):
    """`count` containers of one image, each in a network namespace of its own, made in the same moment; then all asleep."""
    expected, arguments = Expected(0), demo.command(PORT, 0)
    with Images(runtime) as images:
        with runtime.start("saved", "python", arguments, demo.FUNCTION, saved=True, network="new") as c:
            with http.network_of(c.pid()):
                first_answer_ms(c, PORT, expected)
                for _ in range(WARM_REQUESTS):
                    expected.ask(PORT)
                know_working_set(c, PORT, expected)
            images.save(c, "image")
        clones = [images.container(f"clone{i}", "image", arguments, begins=False, network="new") for i in range(count)]
        try:
            seconds = at_once([lambda c=c: made(c, Expected(0, expected.served)) for c in clones])
            for c in clones:
                demo.sleep(c, True)
            held = sum(memory.cgroup_bytes(c.cgroup) + uncharged_bytes(c) for c in clones)
            image_bytes = memory.cached_bytes(os.path.join(images.directory, "image"))
            # What woke was what was saved.
            at_once([lambda c=c: asked(c, Expected(0, expected.served + 1)) for c in clones])
        finally:
            for c in clones:
                c.__exit__()
    return {f"clones_{count}_p50": percentile(seconds, 0.5) * 1e3, f"clones_{count}_p99": percentile(seconds, 0.99) * 1e3,
            f"clones_{count}_asleep": (held + image_bytes) / count / (1 << 20)}


def made(container, expected):
    """Runs the command that makes it, and asks."""
    output = os.open(os.devnull, os.O_RDWR)
    pid = os.posix_spawn(container.command[0], container.command, os.environ,
                         file_actions=[(os.POSIX_SPAWN_DUP2, output, n) for n in range(3)])
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise runtimes.Failed(f"{' '.join(container.command)}: {container.output()}")
    asked(container, expected)


def asked(container, expected):
    with http.network_of(container.pid()):
        expected.ask(PORT)


def uncharged_bytes(container):
    """Guest memory that the cgroup is not charged for, if there is any."""
    return max(memory.memfd_bytes(container.pid()) - memory.shared_bytes(container.cgroup), 0)


def at_once(works):
    """Calls each in a process of its own, all in the same moment; seconds from that moment to the end of each. The
    processes are there before."""
    ready, gate = os.pipe(), os.pipe()
    children = []
    for work in works:
        answer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(gate[1])
                os.write(ready[1], b".")
                began = float(os.read(gate[0], 32) or time.perf_counter())
                work()
                os.write(answer[1], json.dumps(time.perf_counter() - began).encode())
                code = 0
            except BaseException as e:  # noqa: BLE001: the parent says it
                os.write(answer[1], json.dumps(f"{type(e).__name__}: {e}").encode()[:4000])
            finally:
                os._exit(code)
        os.close(answer[1])
        children.append((pid, answer[0]))
    for _ in works:
        os.read(ready[0], 1)
    time.sleep(0.2)
    # One write of one length for each reader.
    os.write(gate[1], b"".join(b"%032.9f" % time.perf_counter() for _ in works))
    found = []
    for pid, answer in children:
        with os.fdopen(answer, "rb") as f:
            text = f.read()
        os.waitpid(pid, 0)
        found.append(json.loads(text) if text else "ended without an answer")
    for end in (*ready, *gate):
        os.close(end)
    wrong = [f for f in found if isinstance(f, str)]
    if wrong:
        raise runtimes.Failed(f"{len(wrong)} of {len(works)}: {wrong[0]}")
    return found


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def interleaved(present, rounds, interleave, results, failures):
    """All jobs. `interleave` is run.py's."""
    able = []
    for r in (r for r in present if r.name != "native"):
        if has_images(r) is None:
            able.append(r)
        else:
            failures[(r.name, "clone")] = "left out: it needs " + has_images(r)
    quarks = [r for r in able if r.name in ("quark", "before")]
    own_run()
    for r in able:
        r.state = f"/run/{r.name}-bench"
    for job in SIZES_MB:
        interleave(able, rounds, lambda r: life_round(r, job, failures), f"clone: {job}", results, failures)
    growth_rounds(quarks, rounds, interleave, results, failures)
    for count in AT_ONCE:
        interleave(quarks, max(rounds // 2, 1), lambda r: clones_round(r, count), f"clone: {count} at once", results, failures)


def growth_rounds(quarks, rounds, interleave, results, failures):
    grown = {}
    with contextlib.ExitStack() as all_of_them:
        for quark in quarks:
            try:
                grown[quark.name] = all_of_them.enter_context(Growing(quark))
            except (runtimes.Failed, OSError, TimeoutError) as e:
                failures[(quark.name, "clone: sizes")] = str(e)
        for i in range(rounds * RESTORES):
            interleave(quarks, 1, lambda r: grown[r.name].round(i + 1 == rounds * RESTORES), "clone: sizes", results, failures)
