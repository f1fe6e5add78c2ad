"""Programs over the native core, each built with a sanitizer, that print what is wrong: nothing, if all is well."""

import pytest

from tests.support.native.programs import run_program

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROGRAMS = {
    "batches_reach_processes_and_return": (("thread",), "batch_dispatch.cpp", ("300",), "0 open"),
    "muted_connections_lose_no_message": (
        ("thread",),
        "connections/connection_arming.cpp",
        ("40",),
        "0 lost",
    ),
    "connections_opened_during_a_drain_get_goaway_or_close": (
        ("thread",),
        "connections/drains.cpp",
        ("100",),
        "0 faults",
    ),
    "http_server_has_no_races": (("thread",), "connections/http_server_races.cpp", (), "0 races"),
    "unwatched_listeners_are_watched_again": (
        ("sanitize",),
        "connections/listener_memory.cpp",
        (),
        "watched again",
    ),
    "empty_decref_list_asks_for_no_visit": (
        ("sanitize",),
        "reactor/pending_decrefs.cpp",
        (),
        "0 stuck, 0 lost\n",
    ),
}
"""By what holds if all is well: the sanitizers, the program, its arguments, and what it prints.

Programs with several threads run under the thread sanitizer; the simulator runs the same code under the address sanitizer.
"""


@pytest.mark.parametrize(
    ("flavour", "program", "arguments", "printed"),
    [
        pytest.param(flavour, *row, id=f"{name}-{flavour}")
        for name, (flavours, *row) in PROGRAMS.items()
        for flavour in flavours
    ],
)
def test_program_finds_no_fault(flavour, program, arguments, printed):
    found = run_program(flavour, program, *arguments)
    if "libnghttp2 is missing" in found:
        pytest.skip(found)
    assert printed in found


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["thread", "sanitize"])
def test_queue_stress_leaves_no_request(flavour):
    assert "0 left" in run_program(flavour, "queue_stress.cpp", "6")
