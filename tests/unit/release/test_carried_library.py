"""The native core loads the libnghttp2 in a wheel or, if it is missing, the system's."""

import importlib.util
import os
import subprocess
import sys

ASK = "from ksrv._native.grpc.grpc_server import library_version; print(library_version())"


def test_core_looks_for_libnghttp2_beside_itself_first():
    environment = os.environ | {"LD_DEBUG": "libs"}
    environment.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    tried = [
        line.partition("trying file=")[2]
        for line in done.stderr.splitlines()
        if line.endswith("/libnghttp2.so.14")
    ]
    core = importlib.util.find_spec("ksrv._native._core")
    folder = os.path.dirname(os.path.realpath(core.origin))
    # The dynamic loader searches some subfolders before the folder itself.
    beside = tried.index(f"{folder}/libnghttp2.so.14")
    assert all(path.startswith(folder) for path in tried[:beside])
