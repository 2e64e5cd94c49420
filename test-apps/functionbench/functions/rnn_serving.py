"""n names, invented letter by letter by a recurrent network (PyTorch)."""
import os

import torch

from models import LANGUAGES, LETTERS, Names

PARAMETERS = {"n": (20, 1, 10_000), "language": (3, 0, LANGUAGES - 1)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
LONGEST = 20
model = None


def setup():
    global model
    model = Names()
    model.load_state_dict(torch.load(os.path.join(INPUTS, "rnn.pt")))
    model.eval()


def name(start, language):
    said = torch.zeros(1, LANGUAGES)
    said[0, language] = 1
    state, text = torch.zeros(1, model.hidden), start
    while len(text) < LONGEST:
        letter = torch.zeros(1, len(LETTERS))
        letter[0, LETTERS.index(text[-1])] = 1
        chances, state = model(said, letter, state)
        # The likeliest letter that was not just said: weights by chance would repeat one.
        order = chances[0].argsort(descending=True).tolist()
        best = next(i for i in order if i == len(LETTERS) or LETTERS[i] not in text[-3:])
        if best == len(LETTERS):
            break
        text += LETTERS[best]
    return text


def handle(parameters):
    with torch.no_grad():
        return [name(LETTERS[i % 26], parameters["language"]) for i in range(parameters["n"])]
