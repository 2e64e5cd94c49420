#!/usr/bin/python3
"""Makes what the functions read, the same each time.

    inputs.py DIRECTORY [NAME…]    NAME: records, reviews, images, video, rnn, cnn (default: all)

Each needs no more than its function does: `records` and `reviews` only the standard library."""
import json
import os
import random
import sys

SEED = 20171
WORDS = ("the a this that it and but with for of very quite really not never always good great fine bad poor slow fast cheap dear red blue small "
         "large heavy light phone book lamp chair cable shoe coat pan knife film song battery screen box price seller friend week day month works "
         "broke arrived looks feels sounds smells lasts fits returned bought loved hated liked kept").split()
PRAISE, BLAME = "great good fine loved liked lasts".split(), "bad poor broke hated returned slow".split()


def records(directory):
    """2,000 customers: json_dumps_loads."""
    dice = random.Random(SEED)
    people = [{"id": i, "name": "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=12)), "balance": round(dice.uniform(-1e4, 1e4), 2),
               "active": dice.random() < 0.5, "tags": dice.sample(WORDS, 5), "place": {"x": dice.random(), "y": dice.random(), "note": None}}
              for i in range(2000)]
    with open(os.path.join(directory, "records.json"), "w") as f:
        json.dump(people, f)


def reviews(directory):
    """4,000 lines "1<tab>review" or "0<tab>review", praise and blame: feature_generation, lr_training, lr_prediction."""
    dice = random.Random(SEED)
    with open(os.path.join(directory, "reviews.tsv"), "w") as f:
        for _ in range(4000):
            good = dice.random() < 0.5
            words = dice.choices(WORDS, k=dice.randint(20, 80)) + dice.choices(PRAISE if good else BLAME, k=dice.randint(1, 4))
            dice.shuffle(words)
            f.write(f"{int(good)}\t{' '.join(words).capitalize()}{dice.choice('.!?')}\n")


def images(directory):
    """small.jpg of about 6 KB, large.jpg of about 2.6 MB: image_processing, cnn_serving."""
    from PIL import Image, ImageDraw

    for name, side, shapes, grain, quality in (("small", 224, 24, 0, 80), ("large", 1700, 300, 70, 93)):
        dice = random.Random(SEED)
        picture = Image.new("RGB", (side, side), (90, 120, 160))
        draw = ImageDraw.Draw(picture)
        for _ in range(shapes):
            x, y, size = dice.randrange(side), dice.randrange(side), dice.randrange(side // 20, side // 4)
            shape = dice.choice((draw.ellipse, draw.rectangle))
            shape((x, y, x + size, y + size), fill=tuple(dice.randrange(256) for _ in range(3)))
        if grain:
            noise = Image.frombytes("RGB", (side, side), dice.randbytes(3 * side * side))
            picture = Image.blend(picture, noise, grain / 100)
        picture.save(os.path.join(directory, name + ".jpg"), quality=quality)


def video(directory):
    """clip.avi, 60 frames of 320 × 240 in which things move: video_processing."""
    import cv2
    import numpy

    writer = cv2.VideoWriter(os.path.join(directory, "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (320, 240))
    if not writer.isOpened():
        raise SystemExit("inputs.py: OpenCV cannot write clip.avi")
    ground = numpy.random.default_rng(SEED).integers(0, 60, (240, 320, 3), dtype=numpy.uint8)
    for i in range(60):
        frame = ground.copy()
        cv2.circle(frame, (20 + 5 * i, 120), 30, (30, 200, 240), -1)
        cv2.rectangle(frame, (300 - 4 * i, 40), (340 - 4 * i, 90), (200, 60, 40), -1)
        writer.write(frame)
    writer.release()


def rnn(directory):
    """rnn.pt, weights of a network that invents names by letters."""
    import torch

    from models import Names
    torch.manual_seed(SEED)
    torch.save(Names().state_dict(), os.path.join(directory, "rnn.pt"))


def cnn(directory):
    """cnn.pt, weights of a SqueezeNet for 1,000 classes."""
    import torch

    from models import Squeeze
    torch.manual_seed(SEED)
    torch.save(Squeeze().state_dict(), os.path.join(directory, "cnn.pt"))


ALL = {made.__name__: made for made in (records, reviews, images, video, rnn, cnn)}


def main():
    if len(sys.argv) < 2 or set(sys.argv[2:]) - set(ALL):
        sys.exit(f"usage: inputs.py DIRECTORY [{'|'.join(ALL)}]…")
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or ALL:
        ALL[name](sys.argv[1])


if __name__ == "__main__":
    main()
