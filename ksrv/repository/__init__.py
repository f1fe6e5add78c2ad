"""What is on disk: model folders, `model.yaml`, versions."""
