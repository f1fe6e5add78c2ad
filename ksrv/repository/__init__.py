"""Model repositories on disk: model folders, `model.yaml`, versions, archives."""
