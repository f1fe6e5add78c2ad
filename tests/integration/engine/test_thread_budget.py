"""Who may use how many threads: the instances of a model add up to the cores, with every library."""

import json
import os
from functools import partial

import numpy as np
import pytest

from ksrv.client import Client
from ksrv.images.preparer import MOST_THREADS
from ksrv.model.spec import ImageSpec, TensorSpec
from ksrv.server.settings import ServerSettings
from ksrv.server.workers.lifecycle import engine_settings
from ksrv.testing import Server
from tests.support.engine.engine_models import engine, source

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

CORES = len(os.sched_getaffinity(0))

HANDLER = """
import json, os
import cv2, torch
from ksrv import BaseHandler

class Handler(BaseHandler):
    def handle(self, batch, context):
        # Two matrices that torch shares out among its threads.
        torch.ones(300, 300) @ torch.ones(300, 300)
        parallel = [line for line in torch.__config__.parallel_info().splitlines()
                    if "omp_get_max_threads" in line]
        session = self.model.session.get_session_options()
        found = {
            "torch": torch.get_num_threads(),
            "openmp": int(parallel[0].rsplit(":", 1)[1]) if parallel else 1,
            "onnxruntime": session.intra_op_num_threads * session.inter_op_num_threads,
            "opencv": cv2.getNumThreads(),
        }
        return [json.dumps(found)] * batch.rows
"""

MODEL = """
handler: handler.py
model: m.onnx
executor: {executor}
instances: {instances}
warmup: false
"""


def write_onnx(path):
    tensor = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["rows", 2])
    node = helper.make_node("Add", ["x", "x"], ["y"])
    graph = helper.make_graph([node], "twice", [tensor("x")], [tensor("y")])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("budget")
    for executor in ("inline", "process"):
        for instances in (1, 2):
            folder = root / f"{executor}-{instances}"
            folder.mkdir()
            write_onnx(folder / "m.onnx")
            (folder / "handler.py").write_text(HANDLER)
            text = MODEL.format(executor=executor, instances=instances)
            (folder / "model.yaml").write_text(text)
    with Server(root, start_timeout=200) as running:
        yield running


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("executor", ["inline", "process"])
def test_the_instances_of_a_model_add_up_to_the_cores(server, executor, instances):
    with Client(server.url) as client:
        [[told]] = client.infer(
            f"{executor}-{instances}", {"x": np.ones((1, 2), np.float32)}
        ).values()
    threads = json.loads(told)
    share = max(1, CORES // instances)
    assert threads.pop("opencv") == (1 if executor == "inline" else share)
    assert threads == {"torch": share, "openmp": share, "onnxruntime": share}


def test_workers_share_the_cores():
    for workers in (1, 2, CORES * 2):
        settings = engine_settings(ServerSettings(workers=workers))
        assert settings.usable_cores() == max(1, CORES // workers)


@pytest.mark.parametrize("cores", [1, 3, 64])
def test_images_are_decoded_on_the_same_cores(cores):
    image = TensorSpec("x", "UINT8", (-1, 2, 2, 3), ImageSpec())
    served = engine(source(inputs=(image,)), cores=cores)
    (preparer,) = served.loaded()[0].images.values()
    assert preparer.pool.threads == min(cores, MOST_THREADS)
    served.close()
