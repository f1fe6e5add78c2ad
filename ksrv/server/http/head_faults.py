"""The answers to a head that the native parser refuses."""

from http import HTTPStatus

from ksrv.errors import HeadTooLarge, InvalidRequest, KsrvError
from ksrv.limits import Limits, show_limit


class RefusedHead(InvalidRequest):
    """A head that is not valid HTTP/1.1. The connection closes after the answer.

    Args:
        status: The status of the answer.
        fault: The reason, which ends the error's sentence.
    """

    def __init__(self, status: int, fault: str) -> None:
        super().__init__(f"the message is not HTTP that this server accepts: {fault}")
        self.http_status = HTTPStatus(status)


def head_error(status: int, fault: str, limits: Limits) -> KsrvError:
    """Return the error for a refused head.

    Args:
        status: The status of the answer; see `KSRV_HEAD_FAULTS` in native/http/request_head.hpp.
        fault: The reason, which ends the error's sentence; "" for a head that is too long.
        limits: The limits of the server.
    """
    if not fault:
        return HeadTooLarge(
            f"the request's head is longer than the {show_limit('head', limits.head)}"
        )
    return RefusedHead(status, fault)
