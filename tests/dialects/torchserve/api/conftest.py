"""Runners of TorchServe handlers in this process."""

from textwrap import dedent

import pytest

from ksrv.dialects.registry import formats
from ksrv.handlers.runner import make_runner
from ksrv.repository.layout import Repository
from tests.support.torchserve.modules import ts_modules

__all__ = ["ts_modules"]


@pytest.fixture
def ts_runner(tmp_path, ts_modules):
    runners = []

    def make(handler, config="", files=(), instance=0, archive=None, manifest=None):
        folder = tmp_path / "own"
        folder.mkdir()
        (folder / "own_handler.py").write_text(dedent(handler))
        for name, content in dict(files).items():
            (folder / name).write_bytes(content)
        (folder / "model.yaml").write_text("handler: own_handler.py\n" + dedent(config))
        source = Repository([tmp_path], formats()).scan()["own"].versions[""]
        source.config.dialect["torchserve"].update(archive or {})
        source.config.dialect["torchserve"]["manifest"]["model"].update(manifest or {})
        runner = make_runner(source, instance=instance)
        runners.append(runner)
        runner.load()
        return runner

    yield make
    for runner in runners:
        runner.close()
