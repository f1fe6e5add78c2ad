"""The client's errors as values: copied and pickled."""

import copy
import pickle

import pytest

from ksrv.client import (
    AccessDenied,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    StatusError,
    Unavailable,
)
from ksrv.client.http1.messages import BrokenConnection

ERRORS = [
    ClientError("it cannot be read"),
    ConnectionFailed("nothing listens there"),
    BrokenConnection("h:1 closed the connection"),
    DeadlineExceeded("no answer in time"),
    StatusError(500, "the handler failed"),
    InvalidRequest(400, "the input is wrong"),
    AccessDenied(401, "no token"),
    NotFound(404, "no such model"),
    Unavailable(503, "the queue is full", 1.5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_an_error_can_be_copied(error, copied):
    found = copied(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
