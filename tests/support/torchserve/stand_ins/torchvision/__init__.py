"""The part of torchvision that the real torchserve's image handlers import, made of Pillow and torch.

torchvision hands these transforms on to Pillow; it is not needed to compare with it. Only the
environment of the real torchserve sees this package.
"""

__version__ = "0.28.0"
