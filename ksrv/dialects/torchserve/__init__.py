"""Handlers written for TorchServe: the runner that drives them, and the package `ts` that they import.

`api` holds the classes that `ts` exports, `shims` makes `ts` and torchvision importable where they are
not installed. Nothing here is imported unless a model's archive or handler asks for it.
"""
