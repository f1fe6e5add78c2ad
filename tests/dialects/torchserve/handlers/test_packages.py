"""`.pt2` files inside archives: exported programs, and what AOTInductor compiled from one."""

import shutil

import numpy as np
import pytest
import requests
import torch

from ksrv.testing import Server
from tests.dialects.torchserve.handlers.test_handler_behaviours import settle
from tests.support.model_files.format_files import compiled_package, exported, network
from tests.support.torchserve.archives import archive

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]  # compiling the package takes the longest

HANDLER = """
import torch
from ts.torch_handler.base_handler import BaseHandler

class Rows(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data], device=self.device)
"""
ROWS = [[1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 0.0, 8.0]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    store = folder / "store"
    store.mkdir()
    handler = folder / "rows_handler.py"
    handler.write_text(HANDLER)
    torch.export.save(exported(network()), folder / "exported.pt2")
    shutil.copy(compiled_package(), folder / "compiled.pt2")
    (folder / "damaged.pt2").write_bytes(b"no zip")
    for name in ("exported", "compiled", "damaged"):
        settings = {"deviceType": "cpu"}
        archive(store, name, handler, files=folder, model=f"{name}.pt2", settings=settings)
    with Server(store, torchserve_api=True, wait_ready=False, start_timeout=600) as running:
        yield running


@pytest.mark.parametrize("model", ["exported", "compiled"])
def test_a_package_answers_as_the_network_does(server, model):
    settle(server)
    with torch.inference_mode():
        wanted = network()(torch.tensor(ROWS)).numpy()
    for row, expected in zip(ROWS, wanted, strict=True):
        answer = requests.post(f"{server.url}/predictions/{model}", json=row, timeout=120)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json(), expected, atol=1e-5, rtol=0)


def test_a_damaged_package_is_that_archives_error_alone(server):
    settle(server)
    answer = requests.post(f"{server.url}/predictions/damaged", json=ROWS[0], timeout=120)
    assert answer.status_code == 503
    assert "damaged.pt2 is not a file of torch.export" in answer.json()["message"]
