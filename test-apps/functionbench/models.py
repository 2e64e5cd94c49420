"""The networks of rnn_serving and cnn_serving, whose weights inputs.py makes."""
import torch
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz-' "
LANGUAGES = 18


class Names(nn.Module):
    """Gives, of a language, a letter and a state, the next letter's chances and the next state (FunctionBench's RNN)."""

    def __init__(self, hidden=128):
        super().__init__()
        self.hidden = hidden
        width = LANGUAGES + len(LETTERS) + hidden
        self.to_hidden, self.to_output = nn.Linear(width, hidden), nn.Linear(width, len(LETTERS) + 1)
        self.output = nn.Linear(hidden + len(LETTERS) + 1, len(LETTERS) + 1)

    def forward(self, language, letter, state):
        everything = torch.cat((language, letter, state), 1)
        state = self.to_hidden(everything)
        return torch.log_softmax(self.output(torch.cat((state, self.to_output(everything)), 1)), 1), state


class Fire(nn.Module):
    """SqueezeNet's block: few channels by 1 × 1, then many by 1 × 1 and by 3 × 3 side by side."""

    def __init__(self, inputs, few, many):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, few, 1)
        self.one, self.three = nn.Conv2d(few, many, 1), nn.Conv2d(few, many, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat((self.one(x), self.three(x)), 1))


class Squeeze(nn.Module):
    """SqueezeNet 1.1: 224 × 224 in three colours to 1,000 classes, with 1.2 million weights."""

    def __init__(self, classes=1000):
        super().__init__()
        pool = lambda: nn.MaxPool2d(3, 2, ceil_mode=True)  # noqa: E731
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool(), Fire(64, 16, 64), Fire(128, 16, 64), pool(), Fire(128, 32, 128), Fire(256, 32, 128),
            pool(), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256), nn.Conv2d(512, classes, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.layers(x)
