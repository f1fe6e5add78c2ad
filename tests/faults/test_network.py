"""Clients behind a network that delays, slows, cuts, resets, half-closes and changes what they send and receive."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ksrv.testing import Server
from tests.support.certificates import self_signed
from tests.support.faults.callers import CALLERS, addresses
from tests.support.faults.health import (
    Baseline,
    assert_answers_exactly,
    assert_counts_add_up,
    descendants,
    page,
)
from tests.support.faults.patterns import remove_journals, write_patterns
from tests.support.faults.proxy import KINDS
from tests.support.faults.storms import judge, storm

pytestmark = pytest.mark.long

WITHOUT_CHANGES = tuple(kind for kind in KINDS if kind != "corrupt")
SETTINGS: dict[str, Any] = {"head_timeout": 5.0, "transfer_grace": 5.0}


class Served:
    """A server, its repository, its certificate if it has TLS, and its address for each protocol."""

    def __init__(self, server: Server, root: Path, trusted: Path | None) -> None:
        self.server, self.root, self.trusted = server, root, trusted
        self.addresses = addresses(server)


@pytest.fixture(scope="module", params=["cleartext", "tls"])
def served(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = write_patterns(tmp_path_factory.mktemp("models"))
    trusted: Path | None = None
    tls: dict[str, Any] = {}
    if request.param == "tls":
        key, trusted = self_signed(tmp_path_factory.mktemp("certificate"))
        tls = {"tls_cert": str(trusted), "tls_key": str(key)}
    with Server(root, **SETTINGS, **tls) as server:
        made = Served(server, root, trusted)
        assert_answers_exactly(
            made.addresses, trusted
        )  # what is made at the first request is there
        yield made


def weather(
    served: Served, protocol: str, seed: str, clients: int, rounds: int, kinds: Any
) -> Counter[str]:
    """Have clients call through faults, check their answers and the server's memory, and return how calls ended."""
    server, processes = served.server, descendants(served.server.pid)
    baseline, before = Baseline(server), page(server)
    remove_journals(served.root)
    ledger = storm(
        served.addresses[protocol],
        protocol,
        seed,
        trusted=served.trusted,
        clients=clients,
        rounds=rounds,
        kinds=kinds,
    )
    judge(ledger, trusted=served.trusted is not None)
    baseline.wait_restored()
    if "corrupt" not in kinds:
        assert_counts_add_up(server, served.root, ledger, before)
    assert descendants(server.pid) == processes
    assert_answers_exactly(served.addresses, served.trusted)
    assert server.get("/v2/health/ready")[0] == 200
    return ledger.outcomes()


@pytest.mark.parametrize(
    ("clients", "rounds"), [(3, 12), pytest.param(8, 60, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("protocol", CALLERS)
def test_calls_end_once_with_the_right_data(
    served: Served, protocol: str, seed: str, clients: int, rounds: int
) -> None:
    told = weather(served, protocol, seed, clients, rounds, WITHOUT_CHANGES)
    assert told["answered"] and told["lost"], told


@pytest.mark.parametrize(
    ("clients", "rounds"), [(4, 6), pytest.param(8, 30, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("protocol", CALLERS)
def test_changed_bytes_fail_only_their_calls(
    served: Served, protocol: str, seed: str, clients: int, rounds: int
) -> None:
    told = weather(served, protocol, seed, clients, rounds, ("corrupt",))
    if rounds > 6:  # few changes may end all calls, or none
        assert told["answered"] < told.total(), told
