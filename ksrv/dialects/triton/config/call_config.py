"""The keys of a config.pbtxt that a load call may change.

A person who may load models is not always their author: a call may change how a model runs, but not which code
runs or which files are read. Such keys are read from the model's folder, whatever the call says.
"""

from collections.abc import Mapping
from typing import Any

from ksrv.dialects.triton.config.configuration import plain
from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.model.fault import Fault

CHANGEABLE = frozenset(
    {
        "name",  # which is compared with the folder's
        "max_batch_size",
        "input",
        "output",
        "version_policy",
        "dynamic_batching",
        "sequence_batching",
        "instance_group",
        "response_cache",
        "model_transaction_policy",
    }
)


def merge_call_config(given: Keys, own: Keys, completed: Mapping[str, Any]) -> Keys:
    """Return the keys of a load call's configuration, completed with the keys that only the model's folder sets.

    A call may repeat such a key, because clients send back the configuration that they were shown.

    Args:
        given: The keys of the call.
        own: The keys of the model's config.pbtxt.
        completed: The same with Triton's defaults, as clients are shown them.

    Raises:
        Fault: The call changes a key that only the model's folder sets.
    """
    changeable = CHANGEABLE
    if completed["backend"] != "python":  # whose code reads the parameters
        changeable |= {"parameters"}
    for key, value in given.items():
        if key not in changeable and plain(value) != completed.get(key):
            raise Fault(
                (key,),
                f"a load call changes only {', '.join(sorted(changeable))}; write this key into the config.pbtxt in "
                f"the model's folder",
            )
    labels = {one.label_filename for one in own.output or ()}
    for index, output in enumerate(given.output or ()):
        if output.label_filename is not None and output.label_filename not in labels:
            raise Fault(
                ("output", index, "label_filename"),
                "a load call names no files; write this key into the config.pbtxt in the model's folder",
            )
    merged = {key: value for key, value in own.items() if key not in changeable}
    return Keys(merged | {key: value for key, value in given.items() if key in changeable})
