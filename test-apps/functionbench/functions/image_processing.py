"""An image turned, mirrored, filtered, made grey and small, each saved: `image` small (6 KB) or large (2.6 MB)."""
import io
import os

from PIL import Image, ImageFilter

PARAMETERS = {"image": ("small", ["small", "large"])}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
files = {}


def setup():
    for name in PARAMETERS["image"][1]:
        with open(os.path.join(INPUTS, name + ".jpg"), "rb") as f:
            files[name] = f.read()


def handle(parameters):
    image = Image.open(io.BytesIO(files[parameters["image"]]))
    made = [image.transpose(Image.FLIP_LEFT_RIGHT), image.transpose(Image.FLIP_TOP_BOTTOM), image.transpose(Image.ROTATE_90),
            image.transpose(Image.ROTATE_180), image.transpose(Image.ROTATE_270)]
    made += [image.filter(f) for f in (ImageFilter.BLUR, ImageFilter.CONTOUR, ImageFilter.SHARPEN)]
    made += [image.convert("L"), image.resize((128, 128))]
    result = b""
    for picture in made:
        file = io.BytesIO()
        picture.save(file, "jpeg")
        result += file.getvalue()
    return result
