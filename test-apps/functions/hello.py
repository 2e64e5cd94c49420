#!/usr/bin/python3
"""The demo's function: a small HTTP server as a function platform would run it.

    hello.py [--port PORT] [--dictionary-mb N]

GET /       answers "hello" and how many requests were served
GET /sum    walks over the dictionary (all of it) and answers its checksum
GET /part?at=I&step=S  answers how many requests were served, and a digest of every S-th value from the I-th on
GET /slow?ms=N  answers after N milliseconds of sleep in the middle of the request
"""
import argparse
import hashlib
import http.server
import socketserver
import sys
import time
import urllib.parse

DICTIONARY = {}
# One key and one value string of this size are about one KiB of heap.
VALUE_BYTES = 880


def fill(megabytes):
    for i in range(megabytes * 1024):
        DICTIONARY[i] = ("%08d" % i) * (VALUE_BYTES // 8)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One write for an answer: in two, delayed acknowledgement makes each request 40 ms.
    wbufsize = -1
    served = 0

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        Handler.served += 1
        if url.path == "/":
            body = "hello %d\n" % Handler.served
        elif url.path == "/sum":
            total = sum(int(v[:8]) + len(v) for v in DICTIONARY.values())
            body = "%d %d\n" % (len(DICTIONARY), total)
        elif url.path == "/part":
            query = urllib.parse.parse_qs(url.query)
            at, step = int(query["at"][0]), int(query["step"][0])
            values = (DICTIONARY[i] for i in range(at, len(DICTIONARY), step))
            body = "hello %d %s\n" % (Handler.served, hashlib.sha256("".join(values).encode()).hexdigest())
        elif url.path == "/slow":
            milliseconds = int(urllib.parse.parse_qs(url.query).get("ms", ["100"])[0])
            time.sleep(milliseconds / 1000)
            body = "slept %d\n" % milliseconds
        else:
            self.send_error(404)
            return
        data = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def server_bind(self):
        # HTTPServer's own looks up the host's name, which may ask a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--dictionary-mb", type=int, default=0)
    options = parser.parse_args()
    fill(options.dictionary_mb)
    server = Server((options.host, options.port), Handler)
    print("listening on port", server.server_address[1], file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
