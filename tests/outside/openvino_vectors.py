"""Vectors of images by OpenVINO: IMAGES.npy VECTORS.npy PROGRAM.onnx.

IMAGES are those that the program expects. Runs in an environment without the
package.
"""

import sys

import numpy as np
import openvino as ov

images, out, program = sys.argv[1:]
# A CPU with units for bfloat16 computes in it otherwise.
exact = {'INFERENCE_PRECISION_HINT': 'f32'}
run = ov.compile_model(ov.convert_model(program), 'CPU', exact)
given = np.load(images)
# Two sizes of batches: the number of images is free.
np.save(out, np.concatenate([run(part)[0] for part in (given[:1], given[1:])]))
