"""The settings of a model: the keys of `model.yaml`, and what they mean together."""
