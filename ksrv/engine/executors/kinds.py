"""The kinds of messages between a worker and its handler processes."""

from enum import IntEnum


class Kind(IntEnum):
    """What a message is about; the child's messages begin at 16, its event messages at 32.

    Events (log records, metrics) have a socket of their own, so that they come home while nothing
    runs and never stand in the way of an answer.
    """

    LOAD = 1
    RUN = 2
    CLOSE = 3
    LISTENING = 4
    LOADED = 16
    ANSWER = 17
    FAILED = 18
    CHUNK = 19
    ASK = 20
    LOG = 32
    METRICS = 33
