"""KServe v2's classification extension: a request can get the best classes of an output instead of all scores.

Each element of the answer is `value:index` or `value:index:label`, the best class first.
"""

from collections.abc import Sequence

import numpy as np

from ksrv.errors import InvalidRequest, quote
from ksrv.model.datatypes import widened
from ksrv.request import Element, Tensor


def classify(tensor: Tensor, count: int, labels: Sequence[str] | None) -> Tensor:
    """Return the best classes of an output as BYTES.

    Args:
        tensor: Scores, with the classes in the last dimension. A tensor of one dimension has the scores of one row.
        count: The number of classes to return, if there are as many.
        labels: Class labels by index, or None.

    Returns:
        A BYTES tensor whose last dimension is the number of returned classes.

    Raises:
        InvalidRequest: The output has no numbers that can be ranked.
    """
    data = tensor.data
    if not isinstance(data, np.ndarray) or tensor.datatype in ("BOOL", "BYTES") or not data.ndim:
        raise InvalidRequest(
            f"the output {quote(tensor.name)} holds {tensor.datatype} of the shape "
            f"{list(tensor.shape)}; classes can be had of numbers with one dimension or more"
        )
    scores = widened(data, tensor.datatype)
    classes = scores.shape[-1]
    count = min(count, classes)
    rows = scores.reshape(-1, classes) if classes else scores.reshape(0, 0)
    elements: list[Element] = []
    for row in rows:
        # Sort descending. Integers are inverted by ~x, because FP64 cannot express every 64-bit integer.
        ranked = -row if row.dtype.kind == "f" else ~row
        for index in np.argsort(ranked, kind="stable")[:count]:
            value = f"{row[index]:f}" if row.dtype.kind == "f" else str(int(row[index]))
            label = f":{labels[index]}" if labels is not None and index < len(labels) else ""
            elements.append(f"{value}:{index}{label}".encode())
    return Tensor(tensor.name, "BYTES", (*tensor.shape[:-1], count), elements, tensor.parameters)
