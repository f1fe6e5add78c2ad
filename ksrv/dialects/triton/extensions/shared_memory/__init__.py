"""The extensions shared memory of the system and of CUDA."""
