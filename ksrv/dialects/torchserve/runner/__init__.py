"""Drives handlers written for TorchServe: turns batches into rows, and the items that they return into answers."""
