"""Reads model repositories on disk: model folders, model.yaml, versions, handler files. Loads no model."""
