"""A connection of HTTP/1.1 beside a list: messages of `http_probes`, in a row, in pieces, and what answers them.

The model is the table of the probes: each message has its statuses, in the order of the messages, until a message ends
the connection; later bytes get no answer.
"""

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ksrv.testing import Server
from tests.support.examples import examples
from tests.support.models import write_double
from tests.support.wire.http_probes import GOOD, PROBES, answers
from tests.support.wire.http_reader import open_connection, read_all

STAYING = sorted(
    name for name, probe in PROBES.items() if len(probe.statuses) == 2 and probe.statuses[-1] == 200
)
"""Messages after which the connection stays open."""
ENDING = sorted(name for name, probe in PROBES.items() if len(probe.statuses) == 1)
"""Messages that are refused, or whose answer is the last."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(
        write_double(tmp_path_factory.mktemp("m")).parent,
        grpc="off",
        head_timeout=300.0,
        transfer_grace=300.0,
    ) as one:
        yield one.http


class ConnectionMachine(RuleBasedStateMachine):
    """One connection, to a server of the module's fixture."""

    address = ""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.client = open_connection(self.address, 60)
        self.unsent = self.received = b""
        self.expected: list[int] = []
        self.ended = False

    def teardown(self) -> None:
        self.client.close()

    @rule(name=st.sampled_from(STAYING))
    def add(self, name: str) -> None:
        self.unsent += PROBES[name].message
        if not self.ended:
            self.expected.append(PROBES[name].statuses[0])

    @rule(name=st.sampled_from(ENDING))
    def add_last(self, name: str) -> None:
        self.unsent += PROBES[name].message + GOOD
        if not self.ended:
            self.expected += PROBES[name].statuses
            self.ended = True

    @precondition(lambda self: self.unsent)
    @rule(share=st.floats(0, 1))
    def send(self, share: float) -> None:
        """Send a part of what is to be sent: the server has it before the rest is sent, or together with it."""
        self.push(1 + int(share * (len(self.unsent) - 1)))

    @precondition(lambda self: self.unsent)
    @rule(count=st.integers(1, 7))
    def send_few(self, count: int) -> None:
        self.push(min(count, len(self.unsent)))

    def push(self, count: int) -> None:
        piece, self.unsent = self.unsent[:count], self.unsent[count:]
        try:
            self.client.sendall(piece)
        except OSError:
            assert self.ended, "the connection was to stay"
            self.unsent = b""

    @rule()
    def read(self) -> None:
        """Read what is there, which may be not a whole answer."""
        if not select.select([self.client], [], [], 0)[0]:
            return
        try:
            self.received += self.client.recv(1 << 16)
        except ConnectionResetError:
            assert self.ended, "the connection was to stay"

    @rule()
    def end(self) -> None:
        """Send the rest and read to the end: every message has its answers. Another connection begins."""
        self.push(len(self.unsent))
        try:
            self.client.shutdown(socket.SHUT_WR)
        except OSError:
            assert self.ended, "the connection was to stay"
        self.received += read_all(self.client)
        self.client.close()
        assert list(answers(self.received)[0]) == self.expected
        self.begin()


def test_messages_in_a_row_have_their_answers(address: str) -> None:
    class Machine(ConnectionMachine):
        pass

    Machine.address = address
    options: dict[str, Any] = {"suppress_health_check": [HealthCheck.filter_too_much]}
    run_state_machine_as_test(
        Machine, settings=examples(600, stateful_step_count=25, deadline=None, **options)
    )
