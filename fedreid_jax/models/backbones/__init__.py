"""Networks whose module is the value of `model.name`, such as `resnet32`.

A module has `make(config)`, or `make(config, options)` and its `Options`, like
a network of a plug-in (docs/extend.md).
"""
