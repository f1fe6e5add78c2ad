"""The parts of a request that has more rows than a batch."""

from dataclasses import replace

from ksrv.request import InferRequest


def bytes_of(request: InferRequest) -> int:
    """Return how many bytes the tensors of a request take."""
    return request.nbytes or sum([tensor.nbytes for tensor in request.inputs])


def rows_of(request: InferRequest, start: int, end: int) -> InferRequest:
    """Return rows of a request as a separate request.

    The parts are answered together (`ksrv.engine.batches.split.join`). So only the whole request keeps the fields that
    concern its answer: the stream, the mark of its end, and the response cache. A dialect's request is never split.
    `bytes_of` counts the bytes of each part anew.
    """
    images = request.images and {
        key: item._replace(headers=item.headers[start:end]) for key, item in request.images.items()
    }
    return replace(
        request,
        inputs=[tensor.rows(start, end) for tensor in request.inputs],
        images=images,
        nbytes=0,
        mark_final=False,
        dialect="",
        facts={},
        stream=None,
        remember=None,
    )
