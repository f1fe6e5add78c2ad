"""Recorded requests and their answers: files of one line each, written by workers and read by `ksrv bench --replay` and warm-ups."""

from ksrv.records.lines import Failure, Record, RecordedTensor
from ksrv.records.reading import RecordError, read_records

__all__ = ["Failure", "Record", "RecordError", "RecordedTensor", "read_records"]
