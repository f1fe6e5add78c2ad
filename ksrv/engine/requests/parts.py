"""The parts of a request that has more rows than a batch."""

from dataclasses import replace

from ksrv.request import InferRequest, Tensor


def bytes_of(request: InferRequest) -> int:
    """Return how many bytes the tensors of a request take."""
    return request.nbytes or sum([tensor.nbytes for tensor in request.inputs])


def rows_of(request: InferRequest, start: int, end: int) -> InferRequest:
    """Return rows of a request as a request of their own."""
    inputs = []
    for tensor in request.inputs:
        width = 1
        for size in tensor.shape[1:]:
            width *= size
        rows = (
            tensor.data[start * width : end * width]
            if isinstance(tensor.data, list)
            else (tensor.data[start:end])
        )
        shape = (end - start, *tensor.shape[1:])
        inputs.append(Tensor(tensor.name, tensor.datatype, shape, rows, tensor.parameters))
    images = request.images and {
        name: one._replace(headers=one.headers[start:end]) for name, one in request.images.items()
    }
    return replace(
        request,
        inputs=inputs,
        images=images,
        nbytes=0,
        mark_final=False,
        dialect="",
        facts={},
        stream=None,
        remember=None,
    )
