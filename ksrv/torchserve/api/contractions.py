"""`ts.torch_handler.contractions`: the table of ksrv's own text handler."""

from ksrv.handlers.builtin.contractions import CONTRACTION_MAP

__all__ = ["CONTRACTION_MAP"]
