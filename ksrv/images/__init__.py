"""Encoded images into the rows of a batch: limits before decoding, OpenCV, geometry, conversion."""
