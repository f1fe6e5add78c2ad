"""KServe's protocol v1: the routes predict and explain, and the state of models."""
