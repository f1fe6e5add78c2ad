"""Checks an installed wheel: serves a model with the installed ksrv, and calls it.

    python tools/try_wheel.py

It uses nothing of the repository.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVQIHWNkaPjPwMDAyNDwn4GBAQAXlAMBQP8pLAAAAABJRU5ErkJggg=="
)
HANDLER = """
from ksrv import BaseHandler


class Mean(BaseHandler):
    def inference(self, image):
        return {"mean": image.mean(axis=(1, 2))}
"""
MODEL = """
handler: handler.py
inputs: [{name: image, datatype: FP32, shape: [-1, 2, 2, 3]}]
outputs: [{name: mean, datatype: FP32, shape: [-1, 3]}]
"""


def main() -> None:
    """Fail unless the installed ksrv serves an image."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the source is not to be found from here
        sys.path[:] = [entry for entry in sys.path if Path(entry or ".").name != "tools"]
        model = Path(folder, "models", "mean")
        model.mkdir(parents=True)
        model.joinpath("handler.py").write_text(HANDLER)
        model.joinpath("model.yaml").write_text(MODEL)
        subprocess.run([sys.executable, "-m", "ksrv", "check", "models"], check=True)
        subprocess.run([sys.executable, "-m", "ksrv", "doctor"], check=True)

        from ksrv.testing import Server

        with Server("models") as server:
            request = urllib.request.Request(
                f"{server.url}/v2/models/mean/infer", PNG, {"Content-Type": "image/png"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                (mean,) = json.load(answer)["outputs"]
        assert mean["shape"] == [1, 3], mean
        print("the wheel serves:", mean["data"])


if __name__ == "__main__":
    main()
