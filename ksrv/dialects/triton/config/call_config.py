"""The keys of a config.pbtxt that a load call may change.

A caller who may load models may not run any code on the server. So a call can change how a model runs, but not which
code runs or which files are read: such keys are always read from the model's folder.
"""

from collections.abc import Mapping
from typing import Any

from ksrv.dialects.triton.config.configuration import plain
from ksrv.dialects.triton.config.model_keys import Keys
from ksrv.model.fault import Fault

CHANGEABLE = frozenset(
    {
        "name",  # must equal the name of the folder
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


def merge_call_config(given: Keys, in_folder: Keys, completed: Mapping[str, Any]) -> Keys:
    """Return the keys of a load call's configuration, completed with the keys that only the model's folder sets.

    A call may repeat such a key, because clients send back the configuration that they were shown.

    Args:
        given: The keys of the call.
        in_folder: The keys of the config.pbtxt in the model's folder.
        completed: The same keys with Triton's defaults, as `configuration` shows them to clients.

    Raises:
        Fault: The call changes a key that only the model's folder sets.
    """
    changeable = CHANGEABLE
    if completed["backend"] != "python":  # code of the model reads the parameters of this backend
        changeable |= {"parameters"}
    for key, value in given.items():
        if key not in changeable and plain(value) != completed.get(key):
            raise Fault(
                (key,),
                f"a load call changes only {', '.join(sorted(changeable))}; write this key into the config.pbtxt in "
                f"the model's folder",
            )
    labels = {output.label_filename for output in in_folder.output or ()}
    for index, output in enumerate(given.output or ()):
        if output.label_filename is not None and output.label_filename not in labels:
            raise Fault(
                ("output", index, "label_filename"),
                "a load call names no files; write this key into the config.pbtxt in the model's folder",
            )
    merged = {key: value for key, value in in_folder.items() if key not in changeable}
    return Keys(merged | {key: value for key, value in given.items() if key in changeable})
