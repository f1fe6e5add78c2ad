"""Headers of images, their decoding, resizing and conversion."""
