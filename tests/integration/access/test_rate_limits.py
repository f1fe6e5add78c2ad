"""Limits on rate and concurrency, for a model and for each token: refused with 429 and Retry-After."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import requests

from ksrv.testing import Server
from tests.support.models import ECHO, SLOW, VECTOR, write_model
from tests.support.streams import StreamedResponse, text_request, write_words
from tests.support.wait_until import wait_until
from tests.support.wire.grpc_calls import infer_request, retry_seconds, stub_infer
from tests.support.wire.http_reader import double_body

RARE = 0.001  # requests a second: one, and no other in this test's time


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "free", ECHO, VECTOR)
    for executor in ("inline", "process"):
        more = f"{VECTOR}executor: {executor}\n"
        write_model(folder, f"rare-{executor}", ECHO, f"{more}rate_limit: {RARE}\n")
        slow = f"{more}parameters: {{seconds: 0.5}}\ninstances: 3\nmax_concurrency: 2\n"
        write_model(folder, f"narrow-{executor}", SLOW, slow + "warmup: false\n")
    return folder


def serving(models, *names, **settings):
    """A server of these models and "free" alone: each handler process takes as long as a server to start."""
    return Server([models / "free", *(models / name for name in names)], **settings)


def over_http(server, model, token="", **headers):
    if token:
        headers["Authorization"] = f"Bearer {token}"
    url = f"{server.url}/v2/models/{model}/infer"
    return requests.post(url, data=double_body(), headers=headers, timeout=60)


def over_grpc(server, model, token=""):
    request = infer_request(model, ("x", "FP32", [1, 4]), raw=[bytes(16)])
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(server.grpc) as channel:
        return stub_infer(channel)(request, timeout=60, metadata=metadata)


def at_once(server, model, token=""):
    """The statuses of six requests that are sent at once."""
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda _: over_http(server, model, token).status_code, range(6)))


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_rate_of_a_model(models, executor):
    name = f"rare-{executor}"
    with serving(models, name) as server:
        assert over_http(server, name).status_code == 200
        for way in ({}, {"TE": "trailers"}):
            refused = over_http(server, name, **way)
            assert refused.status_code == 429
            assert 900 < int(refused.headers["Retry-After"]) <= 1000
            assert "limit 'rate_limit' (0.001 requests a second)" in refused.json()["error"]
        with pytest.raises(grpc.RpcError) as told:
            over_grpc(server, name)
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 900 < retry_seconds(told.value) <= 1000
        assert over_http(server, "free").status_code == 200
        page = requests.get(server.url + "/metrics", timeout=30).text
        assert 'ksrv_refused_requests_total{protocol="http",reason="rate_limit"} 2.0' in page
        assert 'ksrv_refused_requests_total{protocol="grpc",reason="rate_limit"} 1.0' in page


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_concurrency_of_a_model(models, executor):
    name = f"narrow-{executor}"
    with serving(models, name) as server:
        wait_until(lambda: set(at_once(server, name)) == {200, 429})
        assert over_http(server, name).status_code == 200  # all permits have been given back


def test_each_token_has_a_separate_rate(models, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\nthree\n")
    settings = {"token_file": str(tokens), "limits": {"client_rate": RARE}}
    with serving(models, **settings) as server:
        assert over_http(server, "free", "one").status_code == 200
        for _ in range(3):
            refused = over_http(server, "free", "one")
            assert refused.status_code == 429
            assert "limit --limits-client-rate (0.001 requests a second)" in refused.json()["error"]
            assert "one" not in refused.headers.values()
        with pytest.raises(grpc.RpcError):
            over_grpc(server, "free", "one")  # the same client, over whichever protocol
        assert over_http(server, "free", "two").status_code == 200
        over_grpc(server, "free", "three")
        assert over_http(server, "free", "nobody").status_code == 401
        health = requests.get(server.url + "/v2/health/ready", timeout=30)
        assert health.status_code == 200
        headers = {"Authorization": "Bearer one"}
        for _ in range(3):  # only inference is counted
            metadata = requests.get(server.url + "/v2/models/free", headers=headers, timeout=30)
            assert metadata.status_code == 200


def test_each_token_has_a_separate_concurrency_limit(models, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\n")
    write_model(
        tmp_path / "models",
        "slow",
        SLOW,
        VECTOR + "parameters: {seconds: 0.5}\ninstances: 3\nwarmup: false\n",
    )
    settings = {"token_file": str(tokens), "limits": {"client_concurrency": 1}}
    with Server(tmp_path / "models", **settings) as server:
        wait_until(lambda: set(at_once(server, "slow", "one")) == {200, 429})
        assert over_http(server, "slow", "two").status_code == 200
        assert over_http(server, "slow", "one").status_code == 200


def test_client_limits_need_a_token_file(models):
    for limits in ({"client_rate": 1}, {"client_concurrency": 1}):
        with pytest.raises(
            AssertionError, match="clients are distinguished by their tokens; give --token-file"
        ):
            serving(models, limits=limits).start()


def test_a_stream_is_under_way_until_it_ends_or_its_client_is_gone(tmp_path):
    write_words(tmp_path, "words", "max_concurrency: 1\ninstances: 2\n")
    path, url = "/v2/models/words/infer", "{}/v2/models/words/infer"
    with Server(tmp_path) as server:

        def status():
            return requests.post(
                url.format(server.url), json=text_request("a"), timeout=60
            ).status_code

        with StreamedResponse(server, path, text_request("a", pause=0.01, times=10**6)) as streamed:
            next(streamed.events())
            assert status() == 429
            streamed.response.close()
        wait_until(lambda: status() == 200)
        with StreamedResponse(server, path, text_request("a b")) as streamed:
            assert len(list(streamed.events())) == 2
        wait_until(lambda: status() == 200)
