"""Models of Triton: tensors under the names and shapes of `config.pbtxt`, ensembles, and sequences."""
