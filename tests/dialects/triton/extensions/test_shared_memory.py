"""System shared memory with Triton's own clients, and with clients that mean harm."""

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient._plugin import InferenceServerClientPlugin
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from ksrv.testing import Server, ServerFailed
from tests.support.images import files as image_files
from tests.support.models import write_double, write_echo, write_mean, write_text

ROW = np.array([[1, 2, 3, 4]], np.float32)
TOKEN = {"authorization": "Bearer secret"}
FOLDER = Path("/dev/shm")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("shared")
    for write in (write_double, write_echo, write_mean, write_text):
        write(root)
    return root


class WithToken(InferenceServerClientPlugin):
    def __call__(self, request):
        request.headers |= TOKEN


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    tokens = tmp_path_factory.mktemp("control") / "tokens"
    tokens.write_text("secret\n")
    return {"allow_shared_memory": True, "control_token_file": str(tokens)}


@pytest.fixture(scope="module")
def server(repository, control):
    with Server(repository, limits={"regions": 8}, **control) as running:
        yield running


@contextlib.contextmanager
def connected(module, address):
    with module.InferenceServerClient(address) as client:
        client.register_plugin(WithToken())
        yield client


@pytest.fixture(params=["http", "grpc"])
def triton(request, server):
    module = triton_http if request.param == "http" else triton_grpc
    address = server.http if request.param == "http" else server.grpc
    with connected(module, address) as client:
        yield module, client
        client.unregister_system_shared_memory()


over_http = pytest.mark.parametrize("triton", ["http"], indirect=True)
"""For checks of the regions themselves, which both protocols share."""


@pytest.fixture
def region():
    """Make regions; they are removed behind the test."""
    made = []

    def make(size, *, content=b""):
        key = f"ksrv_test_{uuid.uuid4().hex}"
        handle = shm.create_shared_memory_region(key, key, size)
        path = FOLDER / key
        if content:
            shm.set_shared_memory_region(handle, [np.frombuffer(content, np.uint8)])
        made.append(handle)
        return key, handle, path

    yield make
    for handle in made:
        shm.destroy_shared_memory_region(handle)


def placed(module, name, shape, datatype, key, size, offset=0):
    tensor = module.InferInput(name, shape, datatype)
    tensor.set_shared_memory(key, size, offset)
    return tensor


def wanted(module, name, key, size, offset=0):
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(key, size, offset)
    return output


def refused(call, *arguments, **keywords):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **keywords)
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT"), caught.value
    assert "/dev/shm" not in str(caught.value)
    return str(caught.value)


def test_numbers_in_and_out(triton, region):
    module, client = triton
    key, handle, _ = region(4096)
    shm.set_shared_memory_region(handle, [ROW], offset=64)
    client.register_system_shared_memory("both", key, 4096)
    answer = client.infer(
        "double",
        [placed(module, "x", [1, 4], "FP32", "both", 16, 64)],
        outputs=[wanted(module, "y", "both", 32, 128)],
        request_id="7",
    )
    got = shm.get_contents_as_numpy(handle, np.float32, [1, 4], offset=128)
    assert got.tolist() == (ROW * 2).tolist()
    output = answer.get_output("y")
    if module is triton_grpc:
        assert list(output.shape) == [1, 4]
        assert output.parameters["shared_memory_region"].string_param == "both"
        assert output.parameters["shared_memory_byte_size"].int64_param == 16
        assert list(answer.get_response().raw_output_contents) == [b""]
    else:
        assert output == {"name": "y", "datatype": "FP32", "shape": [1, 4]}


def test_text_in_and_out(triton, region):
    module, client = triton
    words = np.array([b"", b"a\x00b", "é".encode()], object)
    packed = serialize_byte_tensor(words).item()
    key, handle, _ = region(256, content=packed)
    client.register_system_shared_memory("text", key, 256)
    client.infer(
        "text",
        [placed(module, "x", [3], "BYTES", "text", len(packed))],
        outputs=[wanted(module, "y", "text", 100, 128)],
    )
    assert shm.get_contents_as_numpy(handle, np.object_, [3], 128).tolist() == words.tolist()


def test_an_image_in_shared_memory(triton, region):
    module, client = triton
    file = image_files.jpeg(8, 8)
    key, _, _ = region(len(file) + 4, content=file)
    client.register_system_shared_memory("image", key, len(file))
    inside = client.infer("mean", [placed(module, "image", [1], "BYTES", "image", len(file))])
    tensor = module.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([file], object))
    outside = client.infer("mean", [tensor])
    assert inside.as_numpy("mean").tolist() == outside.as_numpy("mean").tolist()


def test_status_and_unregister(triton, region):
    module, client = triton
    key, _, _ = region(64)
    client.register_system_shared_memory("one", key, 32, 16)
    client.register_system_shared_memory("two", "/" + key, 8)
    if module is triton_http:
        found = {entry["name"]: entry for entry in client.get_system_shared_memory_status()}
        assert found["one"] == {"name": "one", "key": key, "offset": 16, "byte_size": 32}
        assert [entry["name"] for entry in client.get_system_shared_memory_status("two")] == ["two"]
    else:
        found = client.get_system_shared_memory_status().regions
        assert (found["one"].offset, found["one"].byte_size) == (16, 32)
    assert set(found) == {"one", "two"}
    assert "already registered" in refused(client.register_system_shared_memory, "one", key, 8)
    client.unregister_system_shared_memory("one")
    client.unregister_system_shared_memory("one")
    with pytest.raises(InferenceServerException) as caught:
        client.get_system_shared_memory_status("one")
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
    refused(client.infer, "double", [placed(module, "x", [1, 4], "FP32", "one", 16)])
    client.unregister_system_shared_memory()
    left = client.get_system_shared_memory_status("")
    assert not (left if module is triton_http else left.regions)


@over_http
@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "..", "/..", "a/b", "../etc/passwd", "/../../etc/passwd", "//x", "x\x00y",
     "x" * 300, "ksrv_no_such_memory"],
)  # fmt: skip
def test_keys_that_are_no_names(triton, key):
    _, client = triton
    refused(client.register_system_shared_memory, "bad", key, 16)


@over_http
def test_memory_of_another_user_is_no_region(triton, region):
    """A server that runs as root could open what any program keeps there."""
    _, client = triton
    key, _, path = region(64)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 12345, -1)
    error = refused(client.register_system_shared_memory, "r", key, 64)
    assert "no shared memory with the key" in error
    os.chown(path, os.geteuid(), -1)
    client.register_system_shared_memory("r", key, 64)


@over_http
def test_links_folders_and_pipes_are_no_regions(triton, tmp_path, region):
    _, client = triton
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 64)
    names = [f"ksrv_test_{uuid.uuid4().hex}" for _ in range(4)]
    key, _, path = region(64)
    try:
        (FOLDER / names[0]).symlink_to(secret)
        (FOLDER / names[1]).mkdir()
        os.mkfifo(FOLDER / names[2])
        (FOLDER / names[3]).hardlink_to(path)
        for name in names:
            refused(client.register_system_shared_memory, "bad", name, 16)
        refused(client.register_system_shared_memory, "bad", key, 16)  # it has a second name now
    finally:
        (FOLDER / names[1]).rmdir()
        for name in (names[0], names[2], names[3]):
            (FOLDER / name).unlink()


def test_sizes_are_checked_when_registering(triton, region):
    module, client = triton
    key, _, path = region(64)
    size = path.stat().st_size
    for byte_size, offset in ((size + 1, 0), (size, 1), (1, size), (0, 0), (2**62, 2**62)):
        text = refused(client.register_system_shared_memory, "bad", key, byte_size, offset)
        assert str(size) in text
    if module is triton_http:
        for byte_size in (-1, 1.5, "8", None, True, 2**64):
            refused(client.register_system_shared_memory, "bad", key, byte_size)


def test_sizes_are_checked_with_every_request(triton, region):
    """CVE-2024-0088."""
    module, client = triton
    key, handle, _ = region(64)
    shm.set_shared_memory_region(handle, [ROW])
    client.register_system_shared_memory("r", key, 64)

    def infer(size=16, offset=0, shape=(1, 4), out=None):
        outputs = [wanted(module, "y", "r", *out)] if out else None
        tensor = placed(module, "x", list(shape), "FP32", "r", size, offset)
        return client.infer("double", [tensor], outputs=outputs)

    infer(offset=48)
    text = refused(infer, offset=49)
    assert "64" in text and "49" in text
    with pytest.raises(InferenceServerException) as caught:
        infer(size=2**40, shape=(2**31 - 1, 128))
    assert caught.value.status() in ("400", "413", "StatusCode.RESOURCE_EXHAUSTED")
    assert "Expected 16" in refused(infer, size=20)
    assert "Expected 32" in refused(infer, shape=(2, 4))
    refused(infer, offset=2**63 - 1)
    text = refused(infer, out=(15, 0))
    assert "16" in text and "15" in text and "'y'" in text
    refused(infer, out=(16, 49))
    infer(out=(16, 48))


def test_a_region_that_shrinks_is_an_error_and_no_more(server, triton, region):
    """CVE-2024-0116."""
    module, client = triton
    size = 1 << 20
    key, _, path = region(size)
    client.register_system_shared_memory("r", key, size)
    tensor = placed(module, "x", [1, size // 4], "FP32", "r", size)
    assert client.infer("echo", [tensor]).as_numpy("y").shape == (1, size // 4)
    os.truncate(path, 100)
    assert "shrunk" in refused(client.infer, "echo", [tensor])
    small = module.InferInput("x", [1, 4], "FP32")
    small.set_data_from_numpy(ROW)
    assert "shrunk" in refused(
        client.infer, "echo", [small], outputs=[wanted(module, "y", "r", 16, 4096)]
    )
    assert path.stat().st_size == 100
    assert client.is_server_live()
    os.truncate(path, size)


@over_http
def test_an_array_in_a_region_does_not_change_under_the_handler(triton, region):
    """The tensor is a copy, so its view is not the region's memory."""
    module, client = triton
    key, handle, _ = region(64)
    shm.set_shared_memory_region(handle, [ROW])
    client.register_system_shared_memory("r", key, 64)
    same = wanted(module, "y", "r", 16, 0)
    client.infer("double", [placed(module, "x", [1, 4], "FP32", "r", 16)], outputs=[same])
    assert shm.get_contents_as_numpy(handle, np.float32, [1, 4]).tolist() == (ROW * 2).tolist()


@over_http
def test_regions_are_bounded_and_their_descriptors_given_back(server, triton, region):
    _, client = triton
    key, _, _ = region(64)
    (worker,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()

    def held():
        links = []
        for path in Path(f"/proc/{worker}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that was closed meanwhile
                links.append(os.readlink(path))
        return sum(link.startswith(f"/dev/shm/{key}") for link in links)

    for number in range(8):
        client.register_system_shared_memory(f"r{number}", key, 64)
    assert held() == 8
    assert "--limits-regions" in refused(client.register_system_shared_memory, "one more", key, 64)
    client.unregister_system_shared_memory()
    for _ in range(20):
        client.register_system_shared_memory("r", key, 64)
        client.unregister_system_shared_memory("r")
        refused(client.register_system_shared_memory, "r", key, 1 << 20)
    assert held() == 0


def test_streams_reach_shared_memory_too(server, region):
    key, handle, _ = region(64)
    shm.set_shared_memory_region(handle, [ROW])
    answers = []
    with connected(triton_grpc, server.grpc) as client:
        client.register_system_shared_memory("r", key, 64)
        client.start_stream(lambda result, error: answers.append((result, error)), headers=TOKEN)
        tensor = placed(triton_grpc, "x", [1, 4], "FP32", "r", 16)
        for offset in (32, 60):
            output = wanted(triton_grpc, "y", "r", 16, offset)
            client.async_stream_infer("double", [tensor], outputs=[output])
        client.stop_stream()
        client.unregister_system_shared_memory()
    assert shm.get_contents_as_numpy(handle, np.float32, [4], offset=32).tolist() == [2, 4, 6, 8]
    assert [error is None for _, error in answers] == [True, False]
    assert "64" in str(answers[1][1])


def test_data_beside_a_region(server, region):
    key, _, _ = region(64)
    post = f"{server.url}/v2/systemsharedmemory/region/r/register"
    document = {"key": key, "byte_size": 64}
    assert requests.post(post, json=document, headers=TOKEN, timeout=10).status_code == 200
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": parameters}
    url = f"{server.url}/v2/models/double/infer"
    body = {"inputs": [{**entry, "data": [1, 2, 3, 4]}]}
    answer = requests.post(url, json=body, headers=TOKEN, timeout=10)
    assert answer.status_code == 400
    assert "shared memory" in answer.json()["error"]
    headers = TOKEN | {"Origin": "http://evil.example"}
    for method, path in (
        ("GET", "status"),
        ("POST", "unregister"),
        ("POST", "region/r/unregister"),
    ):
        page = requests.request(
            method, f"{server.url}/v2/systemsharedmemory/{path}", headers=headers, timeout=10
        )
        assert page.status_code == 403
    page = requests.post(url, json={"inputs": [entry]}, headers=headers, timeout=10)
    assert page.status_code == 403
    known = requests.post(url, json={"inputs": [entry]}, headers=TOKEN, timeout=10)
    assert known.status_code == 200
    requests.post(f"{server.url}/v2/systemsharedmemory/unregister", headers=TOKEN, timeout=10)


def test_cuda_memory_is_answered_as_without_a_gpu(triton):
    """As Triton without GPU support does: its examples unregister all of it before they begin."""
    module, client = triton
    client.unregister_cuda_shared_memory()
    client.unregister_cuda_shared_memory("gone")
    status = client.get_cuda_shared_memory_status()
    assert len(status if module is triton_http else status.regions) == 0
    for call, arguments, said in (
        (client.register_cuda_shared_memory, ("r", b"aGFuZGxl", 0, 64), "GPUs not supported"),
        (client.get_cuda_shared_memory_status, ("r",), "Unable to find cuda shared memory region"),
    ):
        with pytest.raises(InferenceServerException, match=said):
            call(*arguments)


def test_settings_that_would_open_it_to_strangers(repository, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    wide = {"http": "0.0.0.0:0", "insecure": True}
    for settings, word in (
        ({"workers": 2}, "workers"),
        (wide, "control_token_file"),
        ({"grpc": "0.0.0.0:0", "insecure": True}, "loopback"),
    ):
        with pytest.raises(ServerFailed, match=word):
            Server(repository, allow_shared_memory=True, **settings).start()
    with Server(
        repository, allow_shared_memory=True, control_token_file=str(tokens), **wide
    ) as guarded:
        port = guarded.http.rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        status = f"{url}/v2/systemsharedmemory/status"
        token = TOKEN
        assert requests.get(status, timeout=10).status_code == 401
        assert requests.get(status, headers=token, timeout=10).status_code == 200
        parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
        entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": parameters}
        infer = f"{url}/v2/models/double/infer"
        assert requests.post(infer, json={"inputs": [entry]}, timeout=10).status_code == 401
        known = requests.post(infer, json={"inputs": [entry]}, headers=token, timeout=10)
        assert (known.status_code, "register it first" in known.text) == (400, True)
        with triton_grpc.InferenceServerClient(guarded.grpc) as client:
            for headers, code in ((None, "UNAUTHENTICATED"), (token, "")):
                try:
                    client.get_system_shared_memory_status(headers=headers)
                    told = ""
                except InferenceServerException as error:
                    told = error.status().removeprefix("StatusCode.")
                assert told == code


def test_a_call_over_tcp_without_a_token_uses_no_memory(repository, region):
    """Neither registers a region, nor uses one that another caller has registered."""
    key, handle, path = region(64)
    shm.set_shared_memory_region(handle, [ROW])
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
    data = {**tensor, "data": [9, 9, 9, 9]}
    with Server(repository, allow_shared_memory=True) as running:
        url = f"{running.url}/v2/systemsharedmemory/region/r/register"
        answer = requests.post(url, json={"key": key, "byte_size": 64}, timeout=10)
        assert answer.status_code == 403
        assert "--control-token-file" in answer.json()["error"]
        infer = f"{running.url}/v2/models/double/infer"
        for document in (
            {"inputs": [{**tensor, "parameters": parameters}]},
            {"inputs": [data], "outputs": [{"name": "y", "parameters": parameters}]},
        ):
            answer = requests.post(infer, json=document, timeout=10)
            assert (answer.status_code, "over a unix socket" in answer.text) == (403, True)
        with triton_grpc.InferenceServerClient(running.grpc) as client:
            for call, arguments in (
                (client.register_system_shared_memory, ("r", key, 64)),
                (client.infer, ("double", [placed(triton_grpc, "x", [1, 4], "FP32", "r", 16)])),
            ):
                with pytest.raises(InferenceServerException) as caught:
                    call(*arguments)
                assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
    assert path.read_bytes()[:16] == ROW.tobytes()


CALLER = """
import http.client, json, os, socket, sys
path, uid, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.setgroups([]); os.setgid(uid); os.setuid(uid)

def call(target, document):
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("POST", target, json.dumps(document))
    answer = connection.getresponse()
    return answer.status, answer.read().decode()

region = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
document = {"inputs": [{**tensor, "parameters": region}]}
print(call("/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 64})[0], end=" ")
print(call("/v2/models/double/infer", document)[0], end=" ")
print(call("/v2/models/double/infer", {**document, "parameters": {"custom": 1}})[0])
"""


def test_unix_socket_callers_need_rights_on_the_memory(repository, region):
    """The owner of the memory, or who may read and write it by its mode; nobody borrows the server's rights."""
    if os.geteuid() != 0:
        pytest.skip("only root can call as another user")
    key, _, memory = region(64)
    # Not below `tmp_path`: pytest closes its folder to other users whenever a run of pytest begins.
    with (
        tempfile.TemporaryDirectory(prefix="ksrv-sockets-") as place,
        Server(
            repository,
            http=f"unix:{place}/http.sock",
            grpc=f"unix:{place}/grpc.sock",
            allow_shared_memory=True,
        ) as running,
    ):
        Path(place).chmod(0o711)
        socket_path, grpc_path = Path(place, "http.sock"), Path(place, "grpc.sock")
        socket_path.chmod(0o777)

        def statuses(uid, mode):
            memory.chmod(mode)
            command = [sys.executable, "-c", CALLER, str(socket_path), str(uid), key]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            return done.stdout.split()

        for uid, mode in ((65534, 0o600), (65534, 0o660), (65534, 0o604), (65534, 0o602)):
            assert statuses(uid, mode) == ["400", "400", "400"], oct(mode)
        assert statuses(0, 0o600) == ["200", "200", "200"]
        assert statuses(65534, 0o600) == ["400"] * 3  # of the region that is registered now
        assert statuses(65534, 0o606) == ["400", "200", "200"]  # the name is taken
        memory.chmod(0o600)
        with triton_grpc.InferenceServerClient(f"unix:{grpc_path}") as client:
            client.unregister_system_shared_memory()
            client.register_system_shared_memory("r", key, 64)
            client.infer("double", [placed(triton_grpc, "x", [1, 4], "FP32", "r", 16)])
        assert running.get("/v2/health/ready")[0] == 200
