"""Instances of all models are assigned to devices in turn, and keep their assignment."""

import pytest

from ksrv.engine.engine import Engine, EngineSettings
from ksrv.errors import HandlerFailed, KsrvError
from ksrv.handlers.handler_context import HandlerContext
from ksrv.repository.layout import Repository

MODELS = {
    "a": "instances: 2",
    "b": "device: cuda:1",
    "c": "device: cpu",
    "d": "device: cuda",
    "e": "",
}


@pytest.fixture
def placed(tmp_path):
    """Load models without a device, and record the number by which each instance chose."""
    for name, settings in MODELS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "handler.py").write_text("def inference(x): return x")
        (tmp_path / name / "model.yaml").write_text(f"handler: handler.py\n{settings}\n")
    chosen = []

    def executor(source, instance, threads):
        context = HandlerContext(source, source.config, instance=instance)
        chosen.append((source.name, context.source.first_device + context.instance))
        raise HandlerFailed("this machine has no device")

    engine = Engine(
        Repository([tmp_path]), EngineSettings(parallel_loads=1), make_executor=executor
    )
    yield engine, chosen
    engine.close(timeout=5)


def test_instances_are_spread_over_devices(placed):
    engine, chosen = placed
    engine.start(wait=True)
    # The first instance that fails ends a load, so only the first instance of each model is seen.
    assert chosen == [("a", 0), ("b", 0), ("c", 0), ("d", 2), ("e", 3)]
    chosen.clear()
    for name in ("e", "a"):
        with pytest.raises(KsrvError):
            engine.load(name)
    assert chosen == [("e", 3), ("a", 0)]
