"""The example of `docs/devices.md` serves, on whatever device is there."""

import numpy as np
import pytest

from ksrv.testing import load
from tests.support.paths import ROOT


def test_the_example_answers_unit_vectors():
    with load(ROOT / "examples/devices/embedder") as model:
        features = np.random.default_rng(0).random((3, 64), dtype=np.float32)
        answer = model.infer({"features": features})
        assert np.linalg.norm(answer["embedding"], axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
        assert answer["length"].shape == (3,)
        alone = model.infer({"features": features[1:2]})
        np.testing.assert_allclose(alone["embedding"], answer["embedding"][1:2], rtol=1e-4)
