"""Lets the real torchserve's handlers be imported and initialized without captum; explains nothing."""
