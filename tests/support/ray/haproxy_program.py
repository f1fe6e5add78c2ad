"""Serves models with HAProxy as Ray's ingress, and calls them; prints what it found as JSON.

    python haproxy_program.py MODELS HTTP_PORT GRPC_PORT

Ray reads what turns HAProxy on as it is imported, so this is a process of its own.
"""

import json
import queue
import sys
from types import SimpleNamespace

import numpy as np
import ray
import requests
import tritonclient.grpc
from ray import serve

import ksrv.ray
from tests.support.ray.ray_cluster import BODY, listed
from tests.support.ray.replica_load import ReplicaLoad
from tests.support.streams import StreamedResponse, pieces, text_request
from tests.support.wait_until import wait_until

INFER = "/v2/models/echo/infer"


def run(models, replicas):
    """Run the application with so many replicas, and return their addresses."""
    settings = {"insecure": True, "drain_delay": 2}
    serve.run(ksrv.ray.app(models, num_replicas=replicas, settings=settings))
    return listed(replicas)


def answers(url):
    """Whether HAProxy has a replica that answers."""
    try:
        return requests.post(url + INFER, BODY, timeout=60).status_code == 200
    except requests.ConnectionError:
        return False


def over_grpc(port):
    """Return an answer, the sentence of a refusal, and the answers of a stream."""
    number = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
    number.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
    text = tritonclient.grpc.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"a b"], object))
    streamed = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer("echo", [number]).as_numpy("y").tolist()
        try:
            client.unload_model("echo")
            refused = ""
        except tritonclient.grpc.InferenceServerException as error:
            refused = error.status()
        client.start_stream(lambda result, error: streamed.put((result, error)))
        client.async_stream_infer("words", [text])
        found = [streamed.get(timeout=60) for _ in range(2)]
        client.stop_stream()
    return answer, refused, [result.as_numpy("piece")[0].decode() for result, _ in found]


def main():
    models, http_port, grpc_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ray.init("local", num_cpus=8, object_store_memory=100 << 20, include_dashboard=False)
    service = ["ksrv.ray:add_servicer"]
    serve.start(
        http_options={"host": "0.0.0.0", "port": http_port},
        grpc_options={"port": grpc_port, "grpc_servicer_functions": service},
    )
    try:
        run(models, 2)
        url = f"http://127.0.0.1:{http_port}"
        wait_until(lambda: answers(url), 120)
        server = SimpleNamespace(http=f"127.0.0.1:{http_port}")
        with StreamedResponse(server, "/v2/models/words/infer", text_request("a b")) as answer:
            streamed = pieces(document for _, document in answer.events())
        found = {
            "unload": requests.post(f"{url}/v2/repository/models/echo/unload").status_code,
            "addresses": len(requests.get(f"{url}/-/addresses").json()["replicas"]),
            "streamed": streamed,
            "grpc": over_grpc(grpc_port),
        }
        with ReplicaLoad(lambda: [f"127.0.0.1:{http_port}"], INFER, BODY) as clients:
            clients.wait_for(100)
            run(models, 4)
            clients.wait_for(100)
            run(models, 1)
            clients.wait_for(100)
        found["lost"] = [repr(one) for one in (*clients.lost, *clients.errors)]
        print("FOUND " + json.dumps(found))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
