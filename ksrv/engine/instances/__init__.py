"""The instances of a model: the threads that run its batches, their devices and their warm-up."""
