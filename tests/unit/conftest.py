"""Runners of model folders."""

import pytest

from ksrv.handlers.runner import Runner
from ksrv.model.config import ModelSource
from ksrv.repository.model_yaml import load_model_config


@pytest.fixture
def loaded():
    """Make loaded runners of folders with a model.yaml; they are closed at the end."""
    runners = []

    def load(folder, name="m", **options):
        source = ModelSource(
            name=name, version="", folder=folder, root=folder, config=load_model_config(folder)
        )
        runner = Runner(source, **options)
        runners.append(runner)
        runner.spec = runner.load()
        return runner

    yield load
    for runner in runners:
        runner.close()
