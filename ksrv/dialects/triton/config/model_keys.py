"""The keys of a `config.pbtxt`, and the rules for their values beyond the types of Triton's message.

`protos/model_config.proto` has the names and types; `text_format.py` reads a file by that message.
"""

from typing import Any, NamedTuple

from ksrv._native.tensor import datatype
from ksrv.model.spec import LARGEST_SIZE

DATA_TYPES = {"TYPE_STRING" if name == "BYTES" else f"TYPE_{name}": name for name in datatype.NAMES}
"""The names of datatypes in KServe v2, by Triton's names."""


class Keys(dict[str, Any]):
    """A message of config.pbtxt: a dict of the keys that the file has, which are also attributes.

    The attribute of a missing key is None. A value of an enumeration is a name. Even an empty message is true, because
    it is in the file.
    """

    def __getattr__(self, key: str) -> Any:
        return self.get(key)

    def __bool__(self) -> bool:
        return True


class MapEntry(Keys):
    """An entry of a map: its `key` and its `value`. A map is a list of them, in the file's order."""


class Rule(NamedTuple):
    """The rule of one key.

    Attributes:
        least: The least number.
        most: The largest number.
        entries: The most entries of a list.
        needed: Whether the key must be given and not be empty.
        default: The value of a key that is left out, unless it is None.
    """

    least: int | None = None
    most: int = 2**31 - 1
    entries: int | None = None
    needed: bool = False
    default: Any = None


NEEDED = Rule(needed=True)
POSITIVE = Rule(1)
DIMS = Rule(-1, LARGEST_SIZE, entries=datatype.MAX_RANK)
TENSOR = {"name": NEEDED, "dims": DIMS._replace(default=())}

RULES: dict[str, dict[str, Rule]] = {
    "ModelConfig": {
        "max_batch_size": Rule(0, 1_000_000),
        "input": Rule(entries=4096),
        "output": Rule(entries=4096),
    },
    "ModelInput": TENSOR,
    "ModelOutput": TENSOR,
    "ModelTensorReshape": {"shape": Rule(-1, LARGEST_SIZE, default=())},
    "ModelVersionPolicy.Latest": {"num_versions": Rule(1, 1_000_000)},
    "ModelVersionPolicy.Specific": {"versions": Rule(0, 10**18 - 1, needed=True)},
    "ModelDynamicBatching": {"preferred_batch_size": POSITIVE},
    "ModelInstanceGroup": {"count": Rule(1, 1024), "gpus": Rule(0, 9999)},
    "ModelEnsembling": {"step": Rule(entries=1024, default=())},
    "ModelEnsembling.Step": {
        "model_name": NEEDED,
        "model_version": Rule(-1, 10**18 - 1, default=-1),
        "input_map": Rule(default=()),
        "output_map": Rule(default=()),
    },
    "ModelParameter": {"string_value": Rule(default="")},
    "ModelSequenceBatching": {"control_input": Rule(entries=64), "state": Rule(entries=1024)},
    "ModelSequenceBatching.ControlInput": {"name": NEEDED, "control": Rule(default=())},
    "ModelSequenceBatching.Control": {"kind": Rule(default="CONTROL_SEQUENCE_START")},
    "ModelSequenceBatching.InitialState": {"dims": DIMS},
    "ModelSequenceBatching.State": {
        "input_name": NEEDED,
        "output_name": NEEDED,
        "data_type": NEEDED,
        "dims": DIMS._replace(needed=True),
        "initial_state": Rule(entries=1),
    },
    "ModelSequenceBatching.StrategyOldest": {
        "max_candidate_sequences": POSITIVE,
        "preferred_batch_size": POSITIVE,
    },
    "ModelWarmup.Input": {"dims": DIMS},
}
"""The rules of keys, by message and key."""
