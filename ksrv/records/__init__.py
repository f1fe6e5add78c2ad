"""Recorded requests and their answers: JSON lines that workers write, for `ksrv bench --replay` and for warm-ups."""

from ksrv.records.lines import Failure, Record, RecordedTensor
from ksrv.records.reading import RecordError, read_records

__all__ = ["Failure", "Record", "RecordError", "RecordedTensor", "read_records"]
