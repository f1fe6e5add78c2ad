"""Every call of gRPC x caller, on both servers: who is let in is decided by the call, however it is written.

The calls are listed by the services themselves, so that a new call is tested too. The credentials that a call needs
are listed here again, by its name, and compared with a real server's answers.
"""

import contextlib
import re

import grpc
import pytest

from ksrv.protocol.protobuf import HEALTH, INFERENCE, REFLECTION, REFLECTION_ALPHA, methods
from ksrv.testing import Server
from tests.support.models import write_double
from tests.support.wire.grpc_calls import call
from tests.support.wire.http2_wire import END_HEADERS, HEADERS, Wire, field, frame

CALLS = [
    f"/{service}/{name}"
    for service in (INFERENCE, HEALTH, REFLECTION, REFLECTION_ALPHA)
    for name in methods(service)
]
PUBLIC = re.compile(rf"/{INFERENCE}/Server(Live|Ready)$|/{HEALTH}/(Check|Watch)$")
CONTROL = re.compile(
    rf"/{INFERENCE}/(RepositoryModel(Load|Unload)|(System|Cuda)SharedMemory\w+|LogSettings|TraceSetting)$"
)

NOBODY = ()
STRANGER = (("authorization", "Bearer other"),)
USER = (("authorization", "Bearer good-token"),)
OPERATOR = (("authorization", "Bearer control-token"),)
WEB_PAGE = (("origin", "https://elsewhere.example"),)
BEHIND_A_PROXY = (("x-forwarded-for", "198.51.100.7"),)

REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")

CALLERS = {
    "open": {
        "nobody": (NOBODY, None),
        "web page": (WEB_PAGE, "PERMISSION_DENIED"),
        "behind a proxy": (BEHIND_A_PROXY, "PERMISSION_DENIED"),
    },
    "control": {
        "nobody": (NOBODY, "UNAUTHENTICATED"),
        "stranger": (STRANGER, "UNAUTHENTICATED"),
        "operator": (OPERATOR, None),
        "operator's web page": (OPERATOR + WEB_PAGE, "PERMISSION_DENIED"),
    },
    "token": {
        "nobody": (NOBODY, "UNAUTHENTICATED"),
        "stranger": (STRANGER, "UNAUTHENTICATED"),
        "user": (USER, "UNAUTHENTICATED"),
        "operator": (OPERATOR, None),
    },
}
"""The refusal of a control call of each, by the kind of the server; None if the call is let in."""


@pytest.fixture(scope="module", params=[*CALLERS, "grpcio"])
def guarded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    write_double(folder / "models")
    (folder / "tokens").write_text("good-token\n")
    (folder / "control").write_text("control-token\n")
    files = {}
    kind = "token" if request.param == "grpcio" else request.param
    if kind != "open":
        files["control_token_file"] = str(folder / "control")
    if kind == "token":
        files["token_file"] = str(folder / "tokens")
    carrier = "grpcio" if request.param == "grpcio" else "native"
    settings = {"allow_shared_memory": True, "grpc_server": carrier, **files}
    with Server(folder / "models", **settings) as running:
        running.kind = kind
        yield running


def outcome(channel, path, metadata):
    """How a call with an empty message ends, or begins to be answered."""
    made = channel.stream_stream(path)(iter([b""]), timeout=30, metadata=metadata)
    with contextlib.suppress(grpc.RpcError):
        next(made, None)
        made.cancel()  # it has an answer, or has ended
        return "OK"
    return made.code().name


def test_each_call_admits_exactly_its_callers(guarded):
    assert {path for path in CALLS if PUBLIC.match(path) or CONTROL.match(path)} < set(CALLS)
    with grpc.insecure_channel(guarded.grpc) as channel:
        for path in CALLS:
            for who, (metadata, refusal) in CALLERS[guarded.kind].items():
                code = outcome(channel, path, metadata)
                has_token = guarded.kind != "token" or who in ("user", "operator")
                if guarded.kind == "open" and path.endswith("/SystemSharedMemoryRegister"):
                    assert code == "PERMISSION_DENIED", (
                        who
                    )  # memory belongs to a user, and TCP names none
                elif CONTROL.match(path) and refusal is not None:
                    assert code == refusal, (who, path)
                elif not has_token and not PUBLIC.match(path):
                    assert code == "UNAUTHENTICATED", (who, path)
                else:
                    assert code not in REFUSALS, (who, path)


def odd_forms(path):
    """Other ways to write a call's path, which some reader takes for the same path."""
    service, name = path.removeprefix("/").split("/")
    yield from ("/" + path, f"/{service}//{name}", path + "/", f"/./{service}/{name}")
    yield from (
        path.lower(),
        path.upper(),
        f"/{service}%2f{name}",
        f"/{service}/%{ord(name[0]):x}{name[1:]}",
    )
    yield from (
        path + "?",
        path + "#x",
        path + "\\",
        f"/x/..{path}",
        f"/{service}/{name}/../{name}",
    )
    yield from (path.removeprefix("/"), f"http://ksrv{path}", path + ";x", path + " ", "*")


def test_a_path_that_is_written_otherwise_leads_nowhere(guarded):
    """Whoever asks: what no service has is unknown, or is not a path at all."""
    for path in CALLS:
        for written in odd_forms(path):
            if written == path:
                continue
            ended = raw_outcome(guarded.grpc, {":path": written})
            assert not ended or re.search("grpc-status: (12|16)", ended), (written, ended)
    serves(guarded)


NORMAL = {
    ":method": "POST",
    ":scheme": "http",
    ":path": f"/{INFERENCE}/RepositoryModelUnload",
    ":authority": "ksrv",
    "te": "trailers",
    "content-type": "application/grpc",
}


def raw_outcome(address, fields=(), extra=(), without=()):
    """The last fields of a call that is written frame by frame; "" where the stream or the connection was cut."""
    names = [pair for pair in (NORMAL | dict(fields)).items() if pair[0] not in without]
    block = b"".join(field(*pair) for pair in (*extra, *names))
    message = b"\x00\x00\x00\x00\x0a\x0a\x00\x12\x06double"  # model_name, in its field
    with Wire(address) as wire:
        wire.socket.sendall(frame(HEADERS, END_HEADERS, 1, block))
        with contextlib.suppress(ConnectionError):
            wire.socket.sendall(frame(0, 1, 1, message))
        while 1 not in wire.ended and 1 not in wire.resets and not wire.over:
            wire.read()
        return wire.ended.get(1, b"").decode()


ODD = {
    "no method": {"without": (":method",)},
    "GET": {"fields": {":method": "GET"}},
    "lower case": {"fields": {":method": "post"}},
    "two methods": {"extra": ((":method", "GET"),)},
    "no path": {"without": (":path",)},
    "empty path": {"fields": {":path": ""}},
    "two paths": {"extra": ((":path", f"/{INFERENCE}/ServerLive"),)},
    "no scheme": {"without": (":scheme",)},
    "odd scheme": {"fields": {":scheme": "file"}},
    "two authorities": {"extra": ((":authority", "other"),)},
    "authority and host": {"fields": {"host": "localhost"}},
    "authority with a path": {"fields": {":authority": f"ksrv/{INFERENCE}/ServerLive"}},
    "authority with a user": {"fields": {":authority": "good-token@ksrv"}},
    "unknown pseudo-header": {"fields": {":authorization": "Bearer control-token"}},
    "authorization in capitals": {"fields": {"Authorization": "Bearer control-token"}},
    "other content": {"fields": {"content-type": "application/json"}},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_pseudo_headers_open_nothing(guarded, kind):
    """A control call of a stranger, or through a proxy without a token, is refused."""
    odd = dict(ODD[kind])
    stranger = {"x-forwarded-for": "198.51.100.7", "authorization": "Bearer other"}
    ended = raw_outcome(guarded.grpc, {**odd.pop("fields", {}), **stranger}, **odd)
    assert "grpc-status: 0" not in ended
    serves(guarded)


def serves(guarded):
    """Whether the model that strangers tried to unload is still there."""
    with grpc.insecure_channel(guarded.grpc) as channel:
        assert call(channel, "ModelReady", name="double", metadata=USER).ready
