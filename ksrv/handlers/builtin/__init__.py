"""The built-in handlers: classifier, segmenter, detector and text classifier, and what they share."""
