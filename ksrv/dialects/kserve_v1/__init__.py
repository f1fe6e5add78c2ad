"""KServe's protocol v1: predict and explain, and the state of models."""
