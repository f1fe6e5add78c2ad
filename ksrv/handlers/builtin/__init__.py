"""The built-in handlers: classifier, segmenter, detector and text classifier."""
