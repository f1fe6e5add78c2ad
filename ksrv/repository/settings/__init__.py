"""Reads and checks the keys of model.yaml."""
