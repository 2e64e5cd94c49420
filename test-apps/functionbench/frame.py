#!/usr/bin/python3
"""Serves one function by HTTP.

    frame.py FUNCTION.py [--host HOST] [--port PORT]

FUNCTION.py has `PARAMETERS`, name to (default, least, most) of a number or (default, list of words), `handle(parameters)`, which does the
work once and gives its result, and may have `setup()`, which loads models and inputs. It listens when `setup` has ended.

GET /?name=value  does the work, and answers in JSON: "digest" of the result, "seconds" of the work itself, "served" requests so far
"""
import argparse
import hashlib
import http.server
import importlib.util
import json
import os
import socketserver
import sys
import time
import urllib.parse

# Of floating-point numbers: processors and runtimes may differ in what comes after these.
DIGITS = 6
# A client that says nothing keeps nobody waiting for longer.
SILENCE_LIMIT_S = 10


class Bad(Exception):
    """A request that cannot be understood; the text says why."""


def parameters_of(query, known):
    """The values for `known` (a module's PARAMETERS) of a URL's query."""
    try:
        given = dict(urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise Bad(f"{query}: not name=value&name=value") from None
    for name in given:
        if name not in known:
            raise Bad(f"{name}: no such parameter; there are {', '.join(sorted(known)) or 'none'}")
    return {name: _value(name, given[name], rule) if name in given else rule[0] for name, rule in known.items()}


def _value(name, text, rule):
    if len(rule) == 2:
        if text not in rule[1]:
            raise Bad(f"{name}={text}: one of {', '.join(rule[1])}")
        return text
    _, least, most = rule
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= most:
        raise Bad(f"{name}={text}: a whole number from {least} to {most}")
    return int(text)


def rounded(result):
    """The result, with what two right answers have in common left of its floating-point numbers."""
    if isinstance(result, float):
        return f"{result + 0.0:.{DIGITS}g}"
    if isinstance(result, (list, tuple)):
        return [rounded(item) for item in result]
    if isinstance(result, dict):
        return {key: rounded(value) for key, value in result.items()}
    return result


def digest(result):
    """SHA-256 of a result: bytes, or what JSON can hold."""
    data = result if isinstance(result, bytes) else json.dumps(rounded(result), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def load(path):
    """The module of a function's file."""
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Function:
    """A function that is ready: answers queries."""

    def __init__(self, module):
        self.module, self.served = module, 0
        if hasattr(module, "setup"):
            module.setup()

    def answer(self, query):
        """What is answered to a query, as a dictionary."""
        parameters = parameters_of(query, self.module.PARAMETERS)
        began = time.perf_counter()
        result = self.module.handle(parameters)
        seconds = time.perf_counter() - began
        self.served += 1
        return {"function": self.module.__name__, "parameters": parameters, "digest": digest(result), "seconds": round(seconds, 6),
                "served": self.served}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENCE_LIMIT_S
    # One write for an answer: in two, delayed acknowledgement makes each request 40 ms.
    wbufsize = -1

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path != "/":
            return self.reply(404, f"{url.path}: there is only /\n", "text/plain")
        try:
            answer = self.server.function.answer(url.query)
        except Bad as error:
            return self.reply(400, f"{error}\n", "text/plain")
        except Exception as error:  # noqa: BLE001: whatever a function throws, the next request is to be served
            return self.reply(500, f"{type(error).__name__}: {error}\n", "text/plain")
        return self.reply(200, json.dumps(answer) + "\n", "application/json")

    def reply(self, status, text, kind):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        # One request after the other, as a function platform sends them: an open connection would hold up all others.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *arguments):
        pass


class Server(http.server.HTTPServer):
    request_queue_size = 64

    def server_bind(self):
        # HTTPServer's own looks up the host's name, which may ask a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


def serve(path, host, port):
    """A server for the function of a file; its `serve_forever` answers."""
    function = Function(load(path))
    server = Server((host, port), Handler)
    server.function = function
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("function", metavar="FUNCTION.py")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", 8080)), help="if not PORT of the environment, 8080")
    options = parser.parse_args()
    server = serve(options.function, options.host, options.port)
    print("listening on port", server.server_address[1], file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
