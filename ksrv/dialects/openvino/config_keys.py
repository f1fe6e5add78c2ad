"""The keys of an OpenVINO Model Server's config.json as msgspec structs, which check names and types.

Keys of type `Any` have several forms, which server_config.py checks.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ksrv.repository.settings.keys import Text


class Keys(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of all mappings: unknown keys are errors."""


class ServerKeys(Keys):
    """The whole file."""

    model_config_list: list[Any] = []
    mediapipe_config_list: list[Any] = []
    pipeline_config_list: list[Any] = []
    custom_node_library_config_list: Any = None
    custom_loader_config_list: Any = None
    monitoring: Any = None


class ModelKeys(Keys):
    """The `config` of one model."""

    name: Text
    base_path: Text
    batch_size: Any = None
    shape: Any = None
    layout: Any = None
    nireq: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    plugin_config: Any = None
    target_device: str | None = None
    model_version_policy: Any = None
    stateful: bool | None = None
    idle_sequence_cleanup: bool | None = None
    low_latency_transformation: bool | None = None
    max_sequence_number: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    allow_cache: bool | None = None
    custom_loader_options: Any = None
    mean: Any = None
    scale: Any = None
    color_format: Any = None
    precision: Any = None
    resize: Any = None


class ModelItem(Keys):
    """One entry of model_config_list."""

    config: Any
    metrics: Any = None


class LatestVersions(Keys):
    """The policy `latest`: the versions with the highest numbers are served."""

    num_versions: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class SpecificVersions(Keys):
    """The policy `specific`: the versions with these numbers are served."""

    versions: Annotated[list[Annotated[int, Meta(ge=0, lt=10**18)]], Meta(min_length=1)]


class AllVersions(Keys):
    """The policy `all`, which has no keys."""


class VersionPolicyKeys(Keys):
    """The versions that are served. Exactly one key is set."""

    latest: LatestVersions | None = None
    specific: SpecificVersions | None = None
    all: AllVersions | None = None


class NameMappings(Keys):
    """A mapping_config.json: for each tensor's name in the model file, the name for clients."""

    inputs: dict[str, Text] = {}
    outputs: dict[str, Text] = {}


# Keys without which answers would be wrong, so the model is not served. The texts are reasons for the report.
REFUSED = {
    "custom_loader_options": "loaders of one's own are not run; a handler loads what it needs",
    "mean": "a model.yaml says it under image:",
    "scale": "a model.yaml says it under image:",
    "color_format": "a model.yaml says it under image:",
    "resize": "a model.yaml says it under image:",
    "precision": "inputs have the datatypes of the file",
}
# Keys that do not change answers, with the reasons for the report.
IGNORED = {
    "nireq": "requests wait in the model's queue; NUM_STREAMS of plugin_config is its instances",
    "allow_cache": "compiled models are not kept on disk; CACHE_DIR of plugin_config keeps them",
}
