"""Vectors of crops by BoxMOT: IMAGES.npy VECTORS.npy PROGRAM.onnx ...

IMAGES are uint8 `[M, H, W, 3]` in BGR, as OpenCV has frames; VECTORS are
`[programs, M, D]`. Runs in an environment without the package.
"""

import sys

import numpy as np
from boxmot.reid.core import ReID

images, out, *programs = sys.argv[1:]
crops = np.load(images)
# The crops below each other are a frame with a box for each of them.
height, width = crops.shape[1:3]
tops = height * np.arange(len(crops))
lefts = np.zeros_like(tops)
boxes = np.stack([lefts, tops, lefts + width, tops + height], 1)
frame = np.concatenate(crops)
found = [ReID(program, device='cpu')(frame, boxes) for program in programs]
np.save(out, np.stack(found))
