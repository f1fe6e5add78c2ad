"""The names that `import ksrv` gives to a handler's author."""

import pytest

import ksrv


@pytest.mark.parametrize("name", [name for name in ksrv.__all__ if name != "__version__"])
def test_every_exported_name_can_be_taken(name: str) -> None:
    assert getattr(ksrv, name) is not None


@pytest.mark.parametrize(
    ("written", "meant"), [("Handler", "BaseHandler"), ("FP32", "Float32"), ("Uint8Array", "Uint8")]
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    written: str, meant: str
) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{written}'; did you mean '{meant}'"):
        getattr(ksrv, written)


def test_a_name_that_resembles_none_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"^module 'ksrv' has no attribute 'Tensor'$"):
        getattr(ksrv, "Tensor")  # noqa: B009
