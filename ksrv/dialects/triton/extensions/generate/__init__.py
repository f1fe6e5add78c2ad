"""The extension generate: requests and answers in plain JSON, without tensors' shapes and datatypes."""
