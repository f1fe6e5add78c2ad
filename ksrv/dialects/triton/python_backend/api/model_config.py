"""ModelConfig: the configuration that `auto_complete_config` completes."""

import json
from collections.abc import Mapping
from typing import Any

from ksrv.dialects.triton.python_backend.api.errors import TritonModelException

_SIDES = {
    "input": ("name", "data_type", "dims", "optional"),
    "output": ("name", "data_type", "dims"),
}
_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """The configuration of a model before it is loaded.

    Args:
        model_config: The configuration of config.pbtxt as JSON.
    """

    def __init__(self, model_config: str) -> None:
        self._config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration, with the changes so far."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the most rows of a batch.

        Raises:
            ValueError: config.pbtxt allows more rows.
        """
        if self._config["max_batch_size"] > max_batch_size:
            raise ValueError(
                f"config.pbtxt has the max_batch_size {self._config['max_batch_size']}, and auto_complete_config of "
                f"the model {self._name!r} sets {max_batch_size}, which is less"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Let requests join batches, with the options of config.pbtxt if it has any.

        Raises:
            ValueError: config.pbtxt has another scheduler.
        """
        for found in _SCHEDULERS:
            if found in self._config:
                raise ValueError(
                    f"config.pbtxt has {found}, and auto_complete_config of the model {self._name!r} sets "
                    f"dynamic_batching"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set whether the model may answer a request with any number of responses.

        Args:
            transaction_policy_dict: {"decoupled": True} or {"decoupled": False}.

        Raises:
            ValueError: The dict has another key, or contradicts config.pbtxt.
        """
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    f"the transaction policy of the model {self._name!r} has the key {key!r}; it may have 'decoupled'"
                )
        known = self._config.get("model_transaction_policy")
        if known and known.get("decoupled") and known != dict(transaction_policy_dict):
            raise ValueError(
                f"config.pbtxt has the model_transaction_policy {known}, and auto_complete_config of the model "
                f"{self._name!r} sets {dict(transaction_policy_dict)}"
            )
        self._config["model_transaction_policy"] = dict(transaction_policy_dict)

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input.

        Args:
            input: Its `name`, `data_type` and `dims`, and perhaps `optional`.

        Raises:
            ValueError: A key is missing or unknown, or contradicts config.pbtxt.
        """
        self._add("input", input)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output.

        Args:
            output: Its `name`, `data_type` and `dims`.

        Raises:
            ValueError: A key is missing or unknown, or contradicts config.pbtxt.
        """
        self._add("output", output)

    @property
    def _name(self) -> str:
        return str(self._config.get("name", ""))

    def _add(self, side: str, given: Mapping[str, Any]) -> None:
        keys = _SIDES[side]
        name = given.get("name")
        for key in given:
            if key not in keys:
                raise ValueError(
                    f"{side} {name!r} in auto_complete_config of the model {self._name!r} has the key {key!r}; it may "
                    f"have {', '.join(keys)}"
                )
        for key in ("name", "data_type", "dims"):
            if key not in given:
                raise ValueError(
                    f"{side} {name!r} in auto_complete_config of the model {self._name!r} lacks the key {key!r}"
                )
        entries = self._config.setdefault(side, [])
        for known in entries:
            if known["name"] == name:
                self._check_same(side, known, given)
                known.update(given)
                return
        entries.append(dict(given))

    def _check_same(self, side: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        for key in _SIDES[side]:
            declared = known.get(key)
            if declared in (None, "TYPE_INVALID", []) or key not in given:
                continue
            if declared != given[key]:
                raise ValueError(
                    f"config.pbtxt declares the {side} {known['name']!r} of the model {self._name!r} with the {key} "
                    f"{declared}, and auto_complete_config with {given[key]}"
                )


def completed(model: Any, model_config: str) -> dict[str, Any]:
    """Return the configuration that the model's `auto_complete_config` makes of `model_config`.

    Args:
        model: The class TritonPythonModel.
        model_config: The configuration as JSON.

    Raises:
        TritonModelException: `auto_complete_config` returned something else.
    """
    complete = getattr(model, "auto_complete_config", None)
    if complete is None:
        return ModelConfig(model_config).as_dict()
    found = complete(ModelConfig(model_config))
    if not isinstance(found, ModelConfig):
        raise TritonModelException(
            f"auto_complete_config must return the ModelConfig that it was given, and returned {type(found).__name__}"
        )
    return found.as_dict()
