"""The first n frames of a clip read by OpenCV, made grey, blurred, and written to another clip."""
import os
import tempfile

import cv2

PARAMETERS = {"n": (60, 1, 60)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")


def handle(parameters):
    clip = cv2.VideoCapture(os.path.join(INPUTS, "clip.avi"))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "grey.avi")
        size = (int(clip.get(cv2.CAP_PROP_FRAME_WIDTH)), int(clip.get(cv2.CAP_PROP_FRAME_HEIGHT)))
        writer = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 25, size)
        count = light = 0
        while count < parameters["n"]:
            there, frame = clip.read()
            if not there:
                break
            grey = cv2.GaussianBlur(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY), (5, 5), 0)
            light += int(grey.sum())
            writer.write(cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR))
            count += 1
        writer.release()
        clip.release()
        again = cv2.VideoCapture(path)
        kept = 0
        while again.read()[0]:
            kept += 1
    if not count == kept == parameters["n"]:
        raise OSError(f"{count} frames read and {kept} written, not {parameters['n']}")
    return [count, light]
