"""What is asked of each kind of server, with the answer looked at: `load` brings data in, `request` asks for some of it."""
import http.client
import random
import socket

from harness import runtimes

LIMIT_S = 30 * runtimes.SLOWNESS
ROWS = 20_000


class Wrong(Exception):
    """An answer is not the right one."""


def expect(found, expected, what):
    if found != expected:
        raise Wrong(f"{what}: {str(found)[:200]!r}, not {str(expected)[:200]!r}")


def connect(address, port):
    s = socket.create_connection((address, port), timeout=LIMIT_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


class Client:
    """One that asks. A connection is made with the first request, and kept if the protocol's users keep theirs."""

    def __init__(self, address, port):
        self.address, self.port = address, port
        self.random = random.Random(1)

    def load(self):
        """Brings data in, that later requests ask for."""

    def row(self):
        return self.random.randrange(ROWS)

    def ready(self):
        """Asks for something that is there before any data: fails until the server serves."""
        self.request()

    def close(self):
        """Gives up the connection, if there is one."""


class Http(Client):
    """A connection for each request. `path` and `body` are functions of a row."""

    def __init__(self, address, port, path=lambda n: f"/row/{n}", body=lambda n: f"row {n}".encode()):
        super().__init__(address, port)
        self.path, self.body = path, body

    def request(self):
        n = self.row()
        connection = http.client.HTTPConnection(self.address, self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", self.path(n))
            answer = connection.getresponse()
            expect((answer.status, answer.read()), (200, self.body(n)), self.path(n))
        finally:
            connection.close()


class Lines(Client):
    """Redis and memcached: text lines on a connection that stays."""
    connection = None

    def ask(self, request, expected):
        if self.connection is None:
            self.connection = connect(self.address, self.port)
        self.connection.sendall(request)
        answer = b""
        while len(answer) < len(expected):
            block = self.connection.recv(65536)
            if not block:
                raise ConnectionError(f"closed after {answer[:100]!r}")
            answer += block
        expect(answer, expected, request[:60])

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None


def value(n):
    """What row `n` holds: 500 bytes that nothing else has."""
    return (f"value {n} " * 64)[:500]


class Redis(Lines):
    @staticmethod
    def words(*words):
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)

    def load(self):
        for first in range(0, ROWS, 1000):
            many = [w for n in range(first, first + 1000) for w in (f"key:{n}", value(n))]
            self.ask(self.words("MSET", *many), b"+OK\r\n")

    def request(self):
        n = self.row()
        self.ask(self.words("GET", f"key:{n}"), b"$500\r\n%s\r\n" % value(n).encode())

    def ready(self):
        self.ask(self.words("PING"), b"+PONG\r\n")


class Memcached(Lines):
    def load(self):
        for n in range(ROWS):
            self.ask(f"set key:{n} 0 0 500\r\n{value(n)}\r\n".encode(), b"STORED\r\n")

    def request(self):
        n = self.row()
        self.ask(f"get key:{n}\r\n".encode(), f"VALUE key:{n} 0 500\r\n{value(n)}\r\nEND\r\n".encode())

    def ready(self):
        self.ask(b"verbosity 0\r\n", b"OK\r\n")


class Sql(Client):
    """A database, by a driver of Python's; the connection stays."""
    connection = None

    def cursor(self):
        if self.connection is None:
            self.connection = self.opened()
            self.connection.autocommit = True
        return self.connection.cursor()

    def load(self):
        c = self.cursor()
        c.execute("CREATE TABLE rows_of_test (n INTEGER PRIMARY KEY, text_of_row VARCHAR(600))")
        for first in range(0, ROWS, 1000):
            rows = ", ".join(f"({n}, '{value(n)}')" for n in range(first, first + 1000))
            c.execute(f"INSERT INTO rows_of_test VALUES {rows}")
        self.commit()

    def commit(self):
        """Where the driver does not commit by itself."""

    def request(self):
        n = self.row()
        c = self.cursor()
        c.execute(f"SELECT text_of_row FROM rows_of_test WHERE n = {n}")
        expect(c.fetchall()[0][0], value(n), f"row {n}")

    def ready(self):
        c = self.cursor()
        c.execute("SELECT 1")
        expect(c.fetchall()[0][0], 1, "SELECT 1")

    def close(self):
        if self.connection:
            try:
                self.connection.close()
            except Exception:  # noqa: BLE001: drivers have errors of their own for a peer that has gone
                pass
        self.connection = None


class Postgres(Sql):
    def opened(self):
        import pg8000
        return pg8000.connect(user="postgres", host=self.address, port=self.port, database="postgres", timeout=LIMIT_S)


class Mariadb(Sql):
    def opened(self):
        import pymysql
        return pymysql.connect(user="test", password="test", host=self.address, port=self.port, database="test", connect_timeout=LIMIT_S,
                               read_timeout=LIMIT_S, autocommit=True)

    def cursor(self):
        # This driver's `autocommit` is a function.
        if self.connection is None:
            self.connection = self.opened()
        return self.connection.cursor()


class Ssh(Client):
    """A login with a key and one command."""
    key = None

    def request(self):
        import paramiko
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        try:
            client.connect(self.address, self.port, "root", key_filename=self.key, timeout=LIMIT_S, look_for_keys=False, allow_agent=False,
                           banner_timeout=LIMIT_S)
            n = self.row()
            _, out, _ = client.exec_command(f"echo row $(({n} + 1))", timeout=LIMIT_S)
            expect(out.read(), f"row {n + 1}\n".encode(), "a command")
        finally:
            client.close()
