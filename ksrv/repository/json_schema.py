"""Makes the JSON schema of model.yaml for editors, from the structs of `settings/keys.py`: `ksrv schema`."""

from typing import Any

import msgspec

from ksrv.repository.format import NO_FORMATS, Formats
from ksrv.repository.settings.keys import SECTIONS, ModelKeys
from ksrv.repository.yaml_document import Custom, Number


def json_schema(formats: Formats = NO_FORMATS) -> dict[str, Any]:
    """Return the JSON schema of `model.yaml`, draft 2020-12.

    Args:
        formats: The readers of other servers' handlers, with the keys of their model.yaml.
    """
    kinds = (ModelKeys, *(reader.keys for reader in formats.handlers))
    [(plain, *foreign), sections] = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    defaults: dict[str, dict[str, Any]] = {
        section.__name__: dict(_defaults(kind)) for kind, section in SECTIONS.items()
    }
    # In the structs that read YAML every default is None. The defaults of the settings' structs are shown instead.
    for name, section in sections.items():
        for key, described in section["properties"].items():
            described.pop("default", None)
            default = defaults.get(name, {}).get(key)
            if default not in (None, ()):
                described["default"] = default
    schema: dict[str, Any] = plain
    # A model.yaml with the key of another server has that server's keys.
    for reader, keys in zip(formats.handlers, foreign, strict=True):
        schema = {"if": {"required": [reader.key]}, "then": keys, "else": schema}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "model.yaml of ksrv",
        **schema,
        "$defs": sections,
    }


def _defaults(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [
        (field.encode_name, field.default)
        for field in msgspec.structs.fields(kind)
        if isinstance(field.default, (str, int, float, tuple))
    ]


def _schema_of(kind: type) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know."""
    assert issubclass(kind, Custom)
    if issubclass(kind, Number):
        return {**kind.schema, "minimum": kind.low, "maximum": kind.high}
    return kind.schema
