"""Networks that `model.name` names by their module, such as `resnet32`.

A module has `make(config)`, or `make(config, options)` and its `Options`, like
a network that is a plug-in (docs/plugins.md).
"""
