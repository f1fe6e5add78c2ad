"""The extensions for shared memory: tensors in POSIX shared memory are served, in CUDA memory refused."""
