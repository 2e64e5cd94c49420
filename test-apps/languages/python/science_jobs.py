"""A little of each scientific package; prints only what is the same each time."""
import io

import cv2
import numpy
import pandas
import PIL.Image
import sklearn.linear_model
import torch

generator = numpy.random.default_rng(7)
matrix = generator.normal(size=(600, 600))
print("numpy", f"{numpy.linalg.svd(matrix, compute_uv=False)[0]:.6f}", f"{numpy.abs(numpy.fft.fft2(matrix)).sum():.3f}")

frame = pandas.DataFrame({"key": generator.integers(0, 50, 20000), "value": generator.normal(size=20000)})
again = pandas.read_csv(io.StringIO(frame.to_csv(index=False)))
print("pandas", again.groupby("key").value.agg(["mean", "count"]).round(6).sum().to_list())

picture = PIL.Image.fromarray(generator.integers(0, 255, (480, 640, 3), dtype="uint8"))
data = io.BytesIO()
picture.resize((320, 240)).rotate(30).save(data, "PNG")
print("Pillow", PIL.Image.open(io.BytesIO(data.getvalue())).convert("L").getbbox())

blurred = cv2.GaussianBlur(numpy.asarray(picture), (15, 15), 0)
print("OpenCV", int(cv2.cvtColor(blurred, cv2.COLOR_RGB2GRAY).sum()), len(cv2.imencode(".png", blurred)[1]))

points = generator.normal(size=(4000, 20))
model = sklearn.linear_model.LogisticRegression(max_iter=200).fit(points, points.sum(axis=1) > 0)
print("scikit-learn", f"{model.score(points, points.sum(axis=1) > 0):.3f}")

torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
inputs = torch.tensor(points, dtype=torch.float32)
for _ in range(50):
    optimizer.zero_grad()
    loss = ((network(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
    loss.backward()
    optimizer.step()
print("PyTorch", f"{loss.item():.3f}")
