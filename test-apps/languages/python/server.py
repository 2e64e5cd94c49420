"""Rows by HTTP, a thread for each connection; every request makes garbage in a circle, which only the collector frees."""
import http.server

ROWS = [f"row {n}" for n in range(20000)]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        garbage = []
        for n in range(1000):
            garbage.append([garbage, n])
        body = ROWS[int(self.path.rsplit("/", 1)[1])].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
