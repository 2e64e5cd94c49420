"""The class of an image, n times, by a SqueezeNet (PyTorch)."""
import os

import numpy
import torch
from PIL import Image

from models import Squeeze

PARAMETERS = {"n": (1, 1, 100)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
model = None


def setup():
    global model
    model = Squeeze()
    model.load_state_dict(torch.load(os.path.join(INPUTS, "cnn.pt")))
    model.eval()


def handle(parameters):
    image = Image.open(os.path.join(INPUTS, "small.jpg")).resize((224, 224))
    batch = torch.from_numpy(numpy.array(image, dtype=numpy.float32)).permute(2, 0, 1).unsqueeze(0) / 255 - 0.5
    with torch.no_grad():
        for _ in range(parameters["n"]):
            classes = model(batch)[0]
    best = classes.argsort(descending=True)[:1].tolist()
    return [best, f"{float(classes.max()):.3g}"]
