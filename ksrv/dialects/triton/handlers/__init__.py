"""Handlers that run Triton models: with the tensors of `config.pbtxt`, with sequences, and as ensembles."""
