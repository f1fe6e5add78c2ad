"""Models of Triton: tensors under the names and shapes of `config.pbtxt`, and ensembles."""
