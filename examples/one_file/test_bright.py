import numpy as np
from bright import Bright

from ksrv.testing import load


def test_a_red_picture_is_red():
    with load(Bright) as model:
        red = np.full((1, 224, 224, 3), (255, 0, 0), np.float32)
        assert model.infer({"image": red})["output"].tolist() == [[255, 0, 0]]
