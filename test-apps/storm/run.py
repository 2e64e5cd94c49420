#!/usr/bin/python3
"""Sends requests of six kinds to a container that is put to sleep all the time, and sees that each is answered.

    make storm REQUESTS=100000

Keep-alive, a connection each, computing, sleeping, uploads in pieces, and long polls, by 16 clients in bursts with rests between them; a
STOP every 50 to 500 ms, which waits for some of that time; CPU quotas of 2 to 100 %. First some requests without any STOP, for comparison. A failure is an
answer that is wrong or does not come in time. Needs root; the container uses this host's loopback device. Exit code 0: none was lost."""
import argparse
import collections
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WORKSPACE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(WORKSPACE, "rootfs"))
sys.path.insert(0, HERE)
import bundle  # noqa: E402
import server  # noqa: E402

CLIENTS = 16
# Percent of one processor, and for how long each.
QUOTAS, QUOTA_S = (100, 100, 50, 100, 20, 100, 2), 3.0
SPINS = {rounds: server.spun(rounds) for rounds in (2_000, 10_000)}


class Lost(Exception):
    """An answer is wrong, or does not come."""


class Container:
    """The server in a container."""

    def __init__(self, quark, directory, seed):
        self.id, self.directory = f"storm-{os.getpid()}", directory
        self.quark = [quark, "--root", os.path.join(directory, "root"), "--log", os.path.join(directory, "log")]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        config = bundle.config(os.path.join(WORKSPACE, "target/rootfs/python"), ["/usr/bin/python3", "/mnt/storm/server.py", str(self.port)],
                               binds=[(HERE, "/mnt/storm", "ro")])
        with open(os.path.join(directory, "config.json"), "w") as f:
            json.dump(config, f)
        subprocess.run(self.quark + ["run", "--detach", "--bundle", directory, self.id], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def command(self, *words, check=True):
        done = subprocess.run(self.quark + list(words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if check and done.returncode:
            raise Lost(f"quark {' '.join(words)}: {done.stderr}")
        return done

    def quota(self, percent):
        self.command("update", "--cpu-period", "100000", "--cpu-quota", str(percent * 1000), self.id)

    def counts(self):
        return json.loads(self.command("events", "--stats", self.id).stdout)["data"]["quark"]["counts"]

    def delete(self):
        self.command("delete", "--force", self.id, check=False)


class Client(threading.Thread):
    """Makes requests until there are enough."""

    def __init__(self, storm, number):
        super().__init__(daemon=True)
        self.storm, self.number = storm, number
        self.random = random.Random(storm.options.seed * 1000 + number)
        self.kept = None

    def connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.storm.container.port, timeout=self.storm.options.patience)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    @staticmethod
    def get(connection, path, expected):
        connection.request("GET", path)
        answer = connection.getresponse().read().decode()
        if answer != expected:
            raise Lost(f"{path}: {answer!r}, not {expected!r}")

    def once(self, path, expected):
        connection = self.connection()
        self.get(connection, path, expected)
        connection.close()

    # Each kind gives the seconds that it takes by its nature.
    def keep_alive(self):
        self.kept = self.kept or self.connection()
        word = str(self.random.random())
        self.get(self.kept, f"/echo/{word}", word)
        return 0

    def connect_each(self):
        self.once("/echo/word", "word")
        return 0

    def compute(self):
        rounds = self.random.choice(list(SPINS))
        self.once(f"/spin/{rounds}", SPINS[rounds])
        return 0

    def sleep(self):
        milliseconds = self.random.choice((30, 100, 300))
        self.once(f"/sleep/{milliseconds}", "slept")
        return milliseconds / 1000

    def upload(self):
        pieces = [self.random.randbytes(self.random.randrange(1, 100_000)) for _ in range(3)]
        pause = self.random.uniform(0, 0.15)
        connection = self.connection()
        connection.putrequest("POST", "/upload")
        connection.putheader("Content-Length", str(sum(map(len, pieces))))
        connection.endheaders()
        for piece in pieces:
            time.sleep(pause)
            connection.send(piece)
        answer = connection.getresponse().read().decode()
        if answer != hashlib.sha256(b"".join(pieces)).hexdigest():
            raise Lost("an upload has another checksum")
        connection.close()
        return pause * len(pieces)

    def long_poll(self):
        key = f"{self.number}-{self.random.random()}"
        wait = self.random.uniform(0.05, 0.6)
        if self.random.random() < 0.5:
            self.once(f"/poll/{key}/{wait * 1000:.0f}", "timeout")
            return wait
        def tell():
            time.sleep(wait)
            self.once(f"/tell/{key}", "ok")
        teller = threading.Thread(target=self.storm.guarded, args=(tell,))
        teller.start()
        self.once(f"/poll/{key}/60000", "told")
        teller.join()
        return wait

    def run(self):
        kinds = [self.keep_alive] * 6 + [self.connect_each] * 4 + [self.compute] * 2 + [self.sleep, self.upload, self.long_poll]
        while self.storm.wants_more():
            self.storm.burst.wait()
            kind = self.random.choice(kinds)
            began = time.monotonic()
            nature = self.storm.guarded(kind)
            if nature is None:
                return
            self.storm.note(kind.__name__, began, time.monotonic() - nature)


class Storm:
    """Clients, STOPs and quotas, and what came of them."""

    def __init__(self, options, container):
        self.options, self.container = options, container
        self.lock, self.burst = threading.Lock(), threading.Event()
        self.left, self.failure, self.stops = 0, None, False
        # The quota, and when it was last less than the whole.
        self.percent, self.throttled = 100, 0.0
        self.late = collections.defaultdict(list)
        self.results = collections.Counter()

    def wants_more(self):
        with self.lock:
            self.left -= 1
            return self.left >= 0 and not self.failure

    def guarded(self, work):
        try:
            return work()
        except (Lost, OSError, http.client.HTTPException) as e:
            self.failure = self.failure or f"{work.__name__} at {self.percent} %: {type(e).__name__}: {e}"
            return None

    def note(self, kind, began, ended):
        whole = self.percent == 100 and began > self.throttled
        with self.lock:
            self.late[self.stops, whole, kind].append(ended - began)

    def play(self, requests, stops):
        self.left, self.stops = requests, stops
        clients = [Client(self, number) for number in range(CLIENTS)]
        others = [threading.Thread(target=self.breathe, daemon=True)]
        if stops:
            others += [threading.Thread(target=t, daemon=True) for t in (self.stop, self.throttle)]
        self.playing = True
        for thread in clients + others:
            thread.start()
        for client in clients:
            client.join()
        self.playing = False
        for thread in others:
            thread.join()

    def breathe(self):
        """Bursts and rests: a container that is never idle never sleeps."""
        chance = random.Random(self.options.seed)
        while self.playing:
            self.burst.set()
            time.sleep(chance.uniform(0.02, 0.4))
            self.burst.clear()
            # Longer than what is under way may take, and than more of an answer is waited for.
            time.sleep(chance.uniform(0.02, 4))
        self.burst.set()

    def stop(self):
        chance = random.Random(self.options.seed + 1)
        while self.playing:
            time.sleep(chance.uniform(0.05, 0.5))
            patience = chance.choice((1, 50, 300, 1000))
            try:
                done = self.container.command("hibernate", f"--timeout={patience}ms", self.container.id, check=False)
            except subprocess.TimeoutExpired:
                self.failure = self.failure or "a STOP has no end"
                return
            reasons = ("is not idle", "something woke it")
            known = next((r for r in reasons if r in done.stderr), None)
            if done.returncode and not known:
                self.failure = self.failure or f"a STOP failed: {done.stderr}"
            self.results["slept" if not done.returncode else known] += 1

    def throttle(self):
        turn = 0
        while self.playing:
            before, self.percent = self.percent, QUOTAS[turn % len(QUOTAS)]
            self.container.quota(self.percent)
            if before < 100:
                self.throttled = time.monotonic()
            end, turn = time.monotonic() + QUOTA_S, turn + 1
            while self.playing and time.monotonic() < end:
                time.sleep(0.1)
        self.percent = 100
        self.container.quota(100)

    def report(self):
        print(f"{'late, ms':30} {'requests':>9} {'median':>8} {'99 %':>8} {'latest':>8}")
        names = {(False, True): "no STOP", (True, True): "STOPs", (True, False): "STOPs, 2 to 50 % CPU"}
        for (stops, whole, kind), late in sorted(self.late.items(), key=lambda item: (item[0][2], item[0][0], not item[0][1])):
            late = sorted(1000 * x for x in late)
            at = [late[len(late) // 2], late[len(late) * 99 // 100], late[-1]]
            print(f"{kind + ', ' + names[stops, whole]:34} {len(late):5} " + " ".join(f"{x:8.1f}" for x in at))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quark", required=True)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--patience", type=float, default=60, help="seconds that an answer may take")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    directory = tempfile.mkdtemp(prefix="quark-storm-")
    container = Container(options.quark, directory, options.seed)
    try:
        storm = Storm(options, container)
        end = time.monotonic() + options.patience
        while True:
            try:
                socket.create_connection(("127.0.0.1", container.port)).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        storm.play(options.requests // 10, stops=False)
        storm.play(options.requests, stops=True)
        storm.report()
        if storm.failure:
            print(f"LOST: {storm.failure}; state: {container.command('state', container.id, check=False).stdout}")
            return 1
        counts = container.counts()
        sleeps = counts["deflates"]
        print(f"STOPs: {dict(storm.results)}; {sleeps} sleeps, {counts['deflates_failed']} given up, worst wake {counts['worst_wake_ns'] / 1e6:.1f} ms; "
              f"wakes by socket {counts['wakes_by_socket']}, by timer {counts['wakes_by_timer']}")
        if sleeps < options.requests // 1000:
            print("it has hardly slept: this has shown nothing")
            return 1
        print(f"0 of {options.requests} lost")
        return 0
    finally:
        container.delete()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
