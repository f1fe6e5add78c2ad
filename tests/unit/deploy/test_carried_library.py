"""The native core takes the libnghttp2 that a wheel carries beside it, and the system's if none is there."""

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
    # The system's dynamic loader looks into some subfolders of a folder before it looks into the folder.
    beside = tried.index(f"{folder}/libnghttp2.so.14")
    assert all(path.startswith(folder) for path in tried[:beside])
