#!/usr/bin/python3
"""The server of the storm: answers requests of six kinds, with a thread for each connection.

    server.py PORT

GET /echo/WORD          WORD
GET /spin/ROUNDS        what so many rounds of SHA-256 make of nothing
GET /sleep/MS           "slept" after so many milliseconds
POST /upload            the SHA-256 of the body, which may come in pieces
GET /poll/KEY/MS        "told" once somebody tells KEY, "timeout" after so many milliseconds
GET /tell/KEY           "ok" """
import hashlib
import http.server
import sys
import threading
import time

told = {}
lock = threading.Condition()


def spun(rounds):
    """What the client expects of so many rounds, too."""
    digest = b""
    for _ in range(rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()


def poll(key, milliseconds):
    with lock:
        lock.wait_for(lambda: key in told, milliseconds / 1000)
        return "told" if told.pop(key, False) else "timeout"


def tell(key):
    with lock:
        told[key] = True
        lock.notify_all()
    return "ok"


def slept(milliseconds):
    time.sleep(milliseconds / 1000)
    return "slept"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        kind, *words = self.path.strip("/").split("/")
        answers = {
            "echo": lambda: words[0], "spin": lambda: spun(int(words[0])), "sleep": lambda: slept(int(words[0])),
            "poll": lambda: poll(words[0], int(words[1])), "tell": lambda: tell(words[0]),
        }
        self.answer(answers[kind]())

    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read1(left)
            if not piece:
                raise ConnectionError("the body is cut short")
            digest.update(piece)
            left -= len(piece)
        self.answer(digest.hexdigest())

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    print("serves", flush=True)
    server.serve_forever()
