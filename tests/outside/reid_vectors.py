"""Vectors of files by the reader of the trackers: FILES OUT FOLDER ...

For each FOLDER, OUT/NAME.npy has the vectors of all PNG files in the folder
FILES, in the order of their names, and those of the same images in one frame of
a video, `[2, M, D]`. Runs in an environment without the package.
"""

import importlib
import sys
import warnings
from pathlib import Path

import cv2
import numpy as np
import supervision
import torch

try:
  importlib.import_module('torchvision')
except RuntimeError:
  # Its compiled operators are those of another build of PyTorch, and are not
  # used here. It is not imported unless these are declared.
  for name in ('nms', 'qnms'):
    torch.library.define(
      f'torchvision::{name}', '(Tensor a, Tensor b, float c) -> Tensor'
    )
from reid import ReIDModel

# A tensor that is missing or unknown is a warning.
warnings.simplefilter('error')
files, out, *folders = sys.argv[1:]
paths = sorted(map(str, Path(files).glob('*.png')))
images = [cv2.imread(path) for path in paths]
width = max(image.shape[1] for image in images)
rows = [
  np.pad(image, ((0, 0), (0, width - image.shape[1]), (0, 0)))
  for image in images
]
ends = np.cumsum([len(row) for row in rows])
boxes = np.array(
  [
    [0, end - len(image), image.shape[1], end]
    for image, end in zip(images, ends, strict=True)
  ],
  np.float32,
)
detections = supervision.Detections(xyxy=boxes)
for folder in folders:
  model = ReIDModel.from_pretrained(folder, device='cpu')
  of_files = model.extract_embeddings_from_paths(paths)
  of_frame = model.extract_embeddings(detections, np.concatenate(rows))
  np.save(Path(out, Path(folder).name), np.stack([of_files, of_frame]))
