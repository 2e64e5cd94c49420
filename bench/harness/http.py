"""A small HTTP client with nothing in it that would be measured along."""
import contextlib
import ctypes
import os
import socket
import time

LIMIT_S = 60
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def network_of(pid):
    """Has this thread make its sockets in the network namespace of a process."""
    mine, theirs = (os.open(f"/proc/{p}/ns/net", os.O_RDONLY) for p in ("thread-self", pid))
    try:
        _set_network(theirs)
        yield
    finally:
        _set_network(mine)
        os.close(mine)
        os.close(theirs)


def _set_network(namespace):
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns to a network namespace")


def connect(port, host="127.0.0.1"):
    s = socket.create_connection((host, port), timeout=LIMIT_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def ask(connection, path="/", close=False):
    """One GET; the body. Fails unless it is answered with 200 and completely."""
    ending = "Connection: close\r\n" if close else ""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{ending}\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        block = connection.recv(65536)
        if not block:
            raise ConnectionError(f"GET {path}: connection closed after {data!r}")
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(f"GET {path}: {head.splitlines()[0]!r}")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        block = connection.recv(65536)
        if not block:
            raise ConnectionError(f"GET {path}: body cut short")
        body += block
    return body


def request_s(port, path="/"):
    """Seconds of one request on a connection of its own, from connect to the last byte of the answer."""
    began = time.perf_counter()
    with connect(port) as c:
        ask(c, path, close=True)
    return time.perf_counter() - began


def keep_alive_s(port, count, path="/"):
    """Seconds of each of `count` requests on one open connection."""
    times = []
    with connect(port) as c:
        for _ in range(count):
            began = time.perf_counter()
            ask(c, path)
            times.append(time.perf_counter() - began)
    return times


def first_answer(port, began, limit_s, still_alive, path="/", check=lambda body: None):
    """Asks until the first 200; seconds since `began`. `still_alive` raises when waiting on is useless, `check` if the
    answer is wrong."""
    while True:
        try:
            with connect(port) as c:
                body = ask(c, path, close=True)
            took = time.perf_counter() - began
            check(body)
            return took
        except (ConnectionError, OSError):
            if time.perf_counter() - began > limit_s:
                raise TimeoutError(f"no answer on port {port} within {limit_s} s") from None
            still_alive()
            time.sleep(0.0005)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
