"""The surface that handlers written for TorchServe import as `ts`, rebuilt on ksrv.

`surface` makes it importable; the other modules are its parts. Nothing here is imported unless a
model's archive or handler asks for it.
"""
