"""The parameters of requests and responses of Triton's Python backend."""

from http import HTTPStatus

import numpy as np
import pytest

from ksrv.dialects.triton.python_backend.api.errors import TritonModelException
from ksrv.dialects.triton.python_backend.api.response import checked_parameters


def test_values_of_other_classes_are_taken_as_python_s_own():
    given = {np.str_("status"): HTTPStatus.OK, "text": np.str_("a"), "yes": True}
    found = checked_parameters(given)
    assert found == {"status": 200, "text": "a", "yes": True}
    assert {type(one) for one in (*found, *found.values())} == {str, int, bool}


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", 1.5, None, np.int64(1)])
def test_a_value_that_no_answer_can_carry_is_refused(value):
    with pytest.raises(TritonModelException, match="parameter"):
        checked_parameters({"p": value})
