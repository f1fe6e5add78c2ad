"""A model as KServe mounts it: at one path, served under the InferenceService's name."""

import numpy as np
import pytest
import requests
from tritonclient import grpc as triton

from ksrv.testing import Server, ServerFailed
from tests.support.models import DOUBLE, VECTOR, write_model


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path, "double", DOUBLE, VECTOR)
    return tmp_path


def test_the_model_of_a_mount_is_served_under_the_services_name(models):
    with Server(models / "double", model_name="cats") as server:
        x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
        url = f"{server.url}/v2/models"
        answer = requests.post(f"{url}/cats/infer", json={"inputs": [x]}, timeout=30).json()
        assert answer["model_name"] == "cats"
        assert answer["outputs"][0]["data"] == [2, 4, 6, 8]
        assert requests.get(f"{url}/double", timeout=30).status_code == 404
        with triton.InferenceServerClient(server.grpc) as client:
            tensor = triton.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
            assert client.infer("cats", [tensor]).as_numpy("y").tolist() == [[2, 2, 2, 2]]
        load = f"{server.url}/v2/repository/models/cats/load"
        assert requests.post(load, timeout=30).status_code == 200


def test_a_mount_with_several_models_is_refused_with_a_sentence(models):
    write_model(models, "other", DOUBLE, VECTOR)
    with pytest.raises(ServerFailed, match=r"'model_name' \(cats\) is the name of one model"):
        Server(models, model_name="cats").start()
