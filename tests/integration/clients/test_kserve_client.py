"""KServe's REST and gRPC clients.

`kserve` needs a protobuf that tritonclient does not work with, so it runs in a separate Python:
`KSERVE_PYTHON` names one that has the package (`make test-kserve` makes it).
"""

import os
import subprocess

import pytest

from ksrv.testing import Server
from tests.support.model_files.triton_models import write_echoes, write_witness
from tests.support.paths import ROOT

CLIENT = ROOT / "tests" / "support" / "clients" / "kserve_client.py"


@pytest.mark.skipif(
    "KSERVE_PYTHON" not in os.environ, reason="KSERVE_PYTHON names no Python with kserve"
)
def test_the_client_itself(tmp_path):
    write_witness(tmp_path)
    write_echoes(tmp_path)
    with Server(tmp_path) as server:
        done = subprocess.run(
            [os.environ["KSERVE_PYTHON"], str(CLIENT), server.url, server.grpc],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.stdout.endswith("done\n"), done.stderr
