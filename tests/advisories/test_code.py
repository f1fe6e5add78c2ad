"""Attacks that make a server run code, open files, or connect somewhere: pickles, URLs, file names, load calls."""

import base64
import itertools
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import requests

from ksrv.testing import Server
from tests.advisories.attacks import form, part, pickled, picture, torch_saved
from tests.advisories.conftest import unharmed
from tests.advisories.test_http import last_error, send, statuses
from tests.support.error_texts import check_text
from tests.support.images import files

pytestmark = pytest.mark.long

ROUTES = (
    "/v2/models/double/infer",
    "/v2/models/text/infer",
    "/v2/models/mean/infer",
    "/v2/models/double/generate",
    "/v1/models/double:predict",
    "/v1/embeddings",
    "/predictions/double",
    "/v2/repository/models/double/load",
    "/models",
)
PICKLES = {
    "CVE-2025-27520": {"Content-Type": "application/vnd.bentoml+pickle"},
    "CVE-2025-32375": {
        "Payload-Container": "DefaultContainer",
        "Payload-Meta": "{}",
        "Batch-Size": "1",
        "args-number": "1",
    },
    "CVE-2025-62164": {"Content-Type": "application/x-torch"},
    "CVE-2026-3059 CVE-2026-3060 CVE-2026-7301 CVE-2026-7304": {
        "Inference-Header-Content-Length": "0"
    },
}


@pytest.mark.parametrize("number", PICKLES)
def test_no_body_is_unpickled(server: Server, tmp_path: Path, number: str) -> None:
    made = tmp_path / "made"
    bodies = (pickled(made), pickled(made, 0), torch_saved(made), base64.b64encode(pickled(made)))
    with unharmed(server) as answers:
        for route, body in itertools.product(ROUTES, bodies):
            answer = requests.post(
                server.url + route, data=body, headers=PICKLES[number], timeout=60
            )
            answers.append(answer.content)
            # As raw bytes, a pickle may happen to be rows of numbers.
            refused = 400 <= answer.status_code < 500
            assert refused or answer.status_code == 200, (route, answer.text)
            assert refused or b"outputs" in answer.content
        assert not made.exists()


def test_no_url_is_fetched(server: Server) -> None:
    """CVE-2025-54381, CVE-2023-43654, CVE-2024-35198, CVE-2025-6242."""
    with socket.create_server(("127.0.0.1", 0)) as listener, unharmed(server) as answers:
        listener.settimeout(0.5)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.jpg"
        texts = [url, {"b64": url}, {"image_url": {"url": url}}]
        entries = [
            {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]} for text in texts
        ]
        calls: list[tuple[str, dict[str, Any]]] = [
            *(("/v2/models/mean/infer", {"json": {"inputs": [entry]}}) for entry in entries),
            ("/v2/models/mean/infer", {"files": {"image": (None, url)}}),
            ("/v2/models/mean/infer", {"data": url, "headers": {"Content-Type": "image/jpeg"}}),
            ("/v1/models/mean:predict", {"json": {"instances": [url]}}),
            ("/predictions/mean", {"data": {"data": url}}),
            (f"/models?url={url}", {}),
            (f"/models?url=file:///tmp/../etc/passwd&model_name={url}", {}),
            ("/v2/repository/models/double/load", {"json": {"parameters": {"model_uri": url}}}),
        ]
        for path, sent in calls:
            answer = requests.post(server.url + path, timeout=60, **sent)
            answers.append(answer.text)
            assert 400 <= answer.status_code < 500, (path, sent, answer.text)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize("name", ["../../../../../../{}", "{}", "..\\..\\{}", "a/../{}%00.jpg"])
def test_no_file_is_written_under_a_forms_file_name(
    server: Server, tmp_path: Path, name: str
) -> None:
    """CVE-2026-7302, CVE-2026-24486."""
    target = tmp_path / "made"
    more = f'; filename="{name.format(target)}"'
    with unharmed(server) as answers:
        body = part(files.jpeg(8, 8), name='name="image"', more=more)
        answers.append(received := send(server, form("/v2/models/mean/infer", body)))
        assert statuses(received) in ([200], [400])
        assert not target.exists()


LOADS = {
    "CVE-2023-31036": {"file:../../../../{made}": "YQ=="},
    "CVE-2023-31036 config": {"config": "{{}}", "file:1/../../{made}": "YQ=="},
    "CVE-2024-53880": {"config": '{{"max_batch_size": 9223372036854775808}}'},
    "CVE-2026-0994": {"config": '{{"parameters": ' + '{{"a":' * 5000},
    "CVE-2025-23316": {
        "config": '{{"name": "$(touch {made})", "backend": "python; touch {made}"}}'
    },
}


@pytest.mark.parametrize("number", LOADS)
def test_load_call_changes_no_file_and_no_code(server: Server, tmp_path: Path, number: str) -> None:
    made = tmp_path / "made"
    parameters = {
        key.format(made=made): value.format(made=made) for key, value in LOADS[number].items()
    }
    with unharmed(server) as answers:
        answer = requests.post(
            f"{server.url}/v2/repository/models/double/load",
            json={"parameters": parameters},
            timeout=60,
        )
        answers.append(answer.text)
        assert answer.status_code == 400, answer.text
        assert "parameter '" in answer.json()["error"]
        assert not made.exists()


NAMES = ("..", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e", "$(touch%20x)", "a%3btouch%20x",
         "x%00y", "x%0aWARNING%20forged", "%c0%ae%c0%ae", "a" * 5000, "double%23/../..")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_name_of_a_model_is_no_path_and_no_command(server: Server, name: str) -> None:
    """CVE-2026-24208, CVE-2026-24209, CVE-2025-23316, CVE-2024-3848, CVE-2026-2614."""
    forms = {
        "GET": ("/v2/models/{}", "/v2/models/double/versions/{}", "/ui/{}", "/v1/models/{}"),
        "POST": ("/v2/repository/models/{}/load", "/v2/models/{}/infer", "/v1/models/{}:predict"),
    }
    with unharmed(server) as answers:
        for method, paths in forms.items():
            for path in paths:
                message = (
                    f"{method} {path.format(name)} HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Length: 2\r\nConnection: close\r\n\r\n{}"
                )
                answers.append(received := send(server, message.encode()))
                assert statuses(received)[0] in (400, 404, 405, 414), (path, received)
                check_text(last_error(received))
    assert not any(line.startswith("WARNING forged") for line in server.log.splitlines())


KINDS = ("JPEG 2000", "MP4", "WebP", "TIFF", "GIF", "EXR")


@pytest.mark.parametrize("kind", KINDS)
def test_only_declared_formats_reach_a_decoder(server: Server, kind: str) -> None:
    """CVE-2026-22778, CVE-2023-4863."""
    with unharmed(server) as answers:
        answer = requests.post(
            f"{server.url}/v2/models/mean/infer",
            data=picture(kind),
            headers={"Content-Type": "image/jpeg"},
            timeout=60,
        )
        answers.append(answer.text)
        assert answer.status_code == 400
        check_text(answer.json()["error"])
        assert "the accepted formats are jpeg, png" in answer.text


def test_smallest_images(server: Server) -> None:
    """CVE-2026-22773."""
    with unharmed(server) as answers:
        for file, status in ((files.png(1, 1), 200), (files.jpeg(1, 1), 200), (b"\x89PNG", 400)):
            answer = requests.post(
                f"{server.url}/v2/models/mean/infer",
                data=file,
                headers={"Content-Type": "image/png"},
                timeout=60,
            )
            answers.append(answer.text)
            assert answer.status_code == status, answer.text


def test_log_settings_open_no_file(server: Server, tmp_path: Path) -> None:
    """CVE-2024-0087."""
    made = tmp_path / "made"
    with unharmed(server) as answers:
        for path in ("/v2/logging", "/v2/trace/setting"):
            for key in ("log_file", "trace_file"):
                answer = requests.post(server.url + path, json={key: str(made)}, timeout=60)
                answers.append(answer.text)
                assert answer.status_code == 400, answer.text
                check_text(answer.json()["error"])
        assert not made.exists()


def test_cache_tells_tensors_of_the_same_bytes_apart(server: Server) -> None:
    """CVE-2025-46722."""
    for _ in range(2):
        for shape in ([1, 2, 6], [1, 3, 4], [1, 6, 2], [1, 4, 3], [1, 12, 1]):
            entry = {"name": "x", "datatype": "UINT8", "shape": shape, "data": [7] * 12}
            answer = requests.post(
                f"{server.url}/v2/models/cached/infer", json={"inputs": [entry]}, timeout=60
            )
            assert answer.json()["outputs"][0]["data"] == [shape[1]]


def test_id_of_a_request_forges_no_line_of_the_log(server: Server) -> None:
    """CVE-2024-0095."""
    text = json.dumps({"id": "a\nWARNING forged\x1b[2J", "inputs": []})
    with unharmed(server) as answers:
        answer = requests.post(
            f"{server.url}/v2/models/double/infer",
            data=text,
            headers={"X-Request-Id": "b\tWARNING forged", "User-Agent": "c\x1b[2J"},
            timeout=60,
        )
        answers.append(answer.text)
        assert answer.status_code == 400
    assert "\x1b[2J" not in server.log
    assert not any(line.startswith("WARNING forged") for line in server.log.splitlines())
