"""The built-in handlers: image classifier, segmenter and detector, text classifier and text encoder."""
