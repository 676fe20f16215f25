"""Formats of exported files and forms of their input, without loading JAX."""

FORMATS = 'jax', 'onnx', 'safetensors', 'torch', 'trackers'
LAYOUTS = NHWC, NCHW = 'nhwc', 'nchw'
VALUES = UINT8, UNIT, NORMALISED, IMAGENET = (
  *('uint8', 'unit', 'normalised', 'imagenet'),
)
