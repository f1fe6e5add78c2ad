"""Headers of images, their decoding and conversion."""
