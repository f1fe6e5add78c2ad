from ksrv._native.tensor.tensor import Tensor

PLAIN_BYTES: int
PLAIN_TENSORS: int

def write(number: int, name: str, span: str, tensors: list[Tensor]) -> bytes | None: ...
def read(payload: bytes) -> tuple[int, str, str, list[Tensor]]: ...
