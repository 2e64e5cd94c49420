"""Rows by HTTP, which go through NumPy, pandas and PyTorch on their way."""
import http.server

import numpy
import pandas
import torch

import server

TABLE = pandas.DataFrame({"n": numpy.arange(20000), "text": server.ROWS})
FACTORS = numpy.random.default_rng(1).normal(size=(256, 256))
MODEL = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))


class Handler(server.Handler):
    def do_GET(self):
        n = int(self.path.rsplit("/", 1)[1])
        inverse = numpy.linalg.inv(FACTORS + n * numpy.eye(256))
        found = round(float(numpy.trace(inverse @ (FACTORS + n * numpy.eye(256)))))
        with torch.no_grad():
            assert found == 256 and MODEL(torch.ones(8, 256)).shape == (8, 16)
        server.ROWS[n] = TABLE[TABLE.n == n].text.iloc[0]
        super().do_GET()


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
