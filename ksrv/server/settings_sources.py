"""Reads the settings from flags, variables, the settings file, and settings files of other servers (config.properties).

A flag beats a `KSRV_*` variable, which beats the settings file (YAML, JSON or TOML), which beats the
default. Keys of a nested section are written `limits.body`: `--limits-body` as a flag,
`KSRV_LIMITS__BODY` as a variable, a mapping in the file. Sizes take a unit: `64M`.

Other programs set variables that begin with `KSRV_` too: Kubernetes gives every pod variables about a Service called
ksrv, or ksrv-something. So an unknown variable is only a warning, and no setting may have the name of such a variable.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml

from ksrv.descriptions import attribute_descriptions
from ksrv.dialects.registry import read_foreign_settings
from ksrv.errors import did_you_mean
from ksrv.limits import Limits
from ksrv.server.settings import ServerSettings, SettingsError

PREFIX = "KSRV_"
BUILD_VARIABLES = frozenset({"KSRV_SANITIZE", "KSRV_SYMBOLS", "KSRV_TRACE", "KSRV_WITHOUT"})
"""Read by the build of the native core, so they may be in the environment of a server in development."""

CLIENT_VARIABLES = frozenset({"KSRV_URL", "KSRV_TOKEN", "KSRV_CA"})
"""Read by the commands that call a server."""

SERVICE_VARIABLE = re.compile(
    r"KSRV_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_[A-Z]+)?)?)"
)
"""Variables that Kubernetes injects for a Service called ksrv...; docker's links look the same."""

SEVERAL = "May be repeated, or separated by commas."
"""The end of the help of flags whose setting takes several values."""

NESTED = frozenset({"limits"})
"""The settings that have nested settings."""

SIZE_KEYS = frozenset(
    {"limits.body", "limits.json", "limits.in_flight", "limits.head", "models_memory"}
)
_WORDS = (
    (r"`int \| null`", "`int`"),
    (r"Expected `int` >= (\d+)", r"expected a whole number from \1"),
    (r"Expected `float` >= ([\d.]+?)(?:\.0)?$", r"expected a number from \1"),
    (r"Expected `float` > ([\d.]+?)(?:\.0)?$", r"expected a number above \1"),
    (r"Expected `(int|float)` <= (\d+)", r"expected a number up to \2"),
    (r"Expected `int`, got .*", "expected a whole number"),
    (r"Expected `float`, got .*", "expected a number"),
    (r"Expected `bool`, got .*", "expected true or false"),
    (r"Expected `str(?: \| null)?`, got .*", "expected a text"),
    (r"Expected `array`, got .*", "expected a list"),
)
"""msgspec's errors for a value, and ksrv's words for them."""
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/,?#@*]+/?", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Field:
    """One setting as the sources name it.

    Attributes:
        key: The dotted key, such as "limits.body".
        type: The type of its value.
    """

    key: str
    type: Any
    default: Any
    description: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that its value may be, if it is a `Literal`; else empty."""
        kind = get_args(self.type)[0] if get_origin(self.type) is Annotated else self.type
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def takes_several(self) -> bool:
        """Whether its value is a list; its flag may be repeated, or have values between commas."""
        return isinstance(self.default, tuple)

    @property
    def flag(self) -> str:
        """Its flag, without a value."""
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.key.replace(".", "__").upper()


def _fields(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[Field]:
    hints = get_type_hints(struct, include_extras=True)
    descriptions = attribute_descriptions(struct)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from _fields(hint, f"{prefix}{field.name}.")
            continue
        yield Field(prefix + field.name, hint, field.default, descriptions.get(field.name, ""))


def fields() -> dict[str, Field]:
    """Return every setting by its dotted key."""
    return {field.key: field for field in _fields(ServerSettings)}


@dataclass(frozen=True)
class _Given:
    """A value as its source gives it, not converted yet."""

    value: Any
    source: str


def _unknown(key: str, source: str, known: Mapping[str, Field]) -> str:
    return f"{source}: unknown setting '{key}'{did_you_mean(key, known)}"


def _from_environment(
    environment: Mapping[str, str], known: Mapping[str, Field]
) -> tuple[dict[str, _Given], list[str]]:
    """Return the settings among the variables, and a warning for each variable that is not a setting."""
    given = {}
    warnings = []
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable in BUILD_VARIABLES | CLIENT_VARIABLES:
            continue
        key = variable.removeprefix(PREFIX).lower().replace("__", ".")
        if key == "config":
            continue
        if key in known:
            given[key] = _Given(value, f"environment variable {variable}")
        elif not SERVICE_VARIABLE.fullmatch(variable):
            near = did_you_mean(variable, [field.variable for field in known.values()])
            warnings.append(
                f"environment variable {variable} is not a setting and is not read{near}"
            )
    return given, warnings


def by_dotted_key(document: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted keys."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= by_dotted_key(value, f"{key}.")
        elif value is not None or key not in NESTED:  # all keys below it may be commented out
            found[key] = value
    return found


_READERS: dict[str, Callable[[str], Any]] = {
    "TOML": tomllib.loads,
    "JSON": json.loads,
    "YAML": yaml.safe_load,
}


def _from_file(path: str, known: Mapping[str, Field]) -> dict[str, _Given]:
    kind = {".toml": "TOML", ".json": "JSON"}.get(Path(path).suffix, "YAML")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        document = _READERS[kind](text)
    # JSON, TOML and UTF-8 raise ValueError.
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise SettingsError(
            f"settings file {path} cannot be read: {reason}; expected {kind} with settings as its keys"
        ) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"settings file {path}: expected keys and values, such as workers: 2")
    source = f"settings file {path}"
    given = by_dotted_key(document)
    for key in given:
        if key not in known:
            raise SettingsError(_unknown(key, source, known))
    return {key: _Given(value, source) for key, value in given.items()}


def parse_size(text: str) -> int:
    """Return the bytes that a text such as "64M" means.

    Raises:
        ValueError: It is not a number with an optional unit of K, M, G or T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size such as 512K, 64M or 1G, got '{text}'")
    return int(match[1]) * _UNITS[match[2].lower()]


def _convert(field: Field, given: _Given) -> Any:
    value = given.value
    try:
        if field.key in SIZE_KEYS and isinstance(value, str):
            value = parse_size(value)
        elif isinstance(value, str) and field.takes_several:
            value = _paths(value) if field.key == "models" else _between_commas(value)
        elif isinstance(value, bool) and not isinstance(field.default, bool):
            # YAML reads `http: off` as false.
            value = "off" if value is False and isinstance(field.default, str) else value
        if field.key == "model_settings" and isinstance(value, str) and value.startswith("@"):
            value = Path(value[1:]).read_text(encoding="utf-8")
        converted = msgspec.convert(value, field.type, strict=False)
        if field.key == "allowed_origins":
            _check_origins(converted)
        return converted
    except (msgspec.ValidationError, ValueError, OSError) as error:
        why = _in_words(str(error))
        if field.choices:
            why = f"expected {', '.join(field.choices[:-1])} or {field.choices[-1]}"
        raise SettingsError(
            f"{given.source}: setting '{field.key}' cannot be {given.value!r}: {why}"
        ) from error


def _in_words(fault: str) -> str:
    """Return an error of msgspec in words for people who do not know Python."""
    for pattern, words in _WORDS:
        fault = re.sub(pattern, words, fault)
    return fault


def _between_commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_origins(origins: Sequence[str]) -> None:
    """Refuse a value that no browser sends as an origin.

    Raises:
        ValueError: A value is not an origin.
    """
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None:
            raise ValueError(
                f"expected * or origins such as https://app.example or http://127.0.0.1:3000, got "
                f"'{origin}'"
            )


def _paths(text: str) -> list[str]:
    """Split a list of paths as `PATH` is split; the NAME of FILE.py:NAME stays with its file."""
    parts: list[str] = []
    for part in text.split(os.pathsep):
        if parts and parts[-1].endswith(".py") and part.isidentifier():
            parts[-1] += os.pathsep + part
        else:
            parts.append(part)
    return [part.strip() for part in parts if part.strip()]


@dataclass(frozen=True)
class Resolved:
    """Settings and where each value came from.

    Attributes:
        origins: The source of each setting that is not a default, by dotted key.
        warnings: Sentences about variables that are not settings.
    """

    settings: ServerSettings
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return one line for each setting: its value and its source."""
        lines = []
        for key in fields():
            value: Any = self.settings
            for name in key.split("."):
                value = getattr(value, name)
            lines.append(f"{key} = {value!r}  ({self.origins.get(key, 'default')})")
        return "\n".join(lines)


def resolve(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Resolved:
    """Join the sources into settings.

    Args:
        flags: Values by dotted key that were given on the command line; None means not given.
        environment: The process environment; None reads `os.environ`.
        file: The settings file; None takes the file that `KSRV_CONFIG` names, if any.

    Returns:
        The settings and the source of each.

    Raises:
        SettingsError: A setting is unknown or its value is not possible.
    """
    known = fields()
    variables = os.environ if environment is None else environment
    path = file or variables.get(PREFIX + "CONFIG")
    given = _from_file(path, known) if path else {}
    from_environment, warnings = _from_environment(variables, known)
    given |= from_environment
    # Any source may name a foreign file, but the values in that file are weaker than values of all other sources.
    named = {key: item.value for key, item in given.items()}
    named |= {key: value for key, value in (flags or {}).items() if value is not None}
    for name, foreign in read_foreign_settings(named).items():
        path = str(named[name])
        given = {key: _Given(value, path) for key, value in foreign.settings.items()} | given
    # Flags win over all other sources.
    for key, value in (flags or {}).items():
        if key not in known:
            raise SettingsError(_unknown(key, "command line", known))
        if value is None or value == ():
            continue
        if known[key].takes_several and key != "models" and not isinstance(value, str):
            value = tuple(part for item in value for part in _between_commas(item))
        given[key] = _Given(value, f"flag {known[key].flag}")
    values: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for key, item in given.items():
        section, _, name = key.rpartition(".")
        (limits if section else values)[name or key] = _convert(known[key], item)
    settings = ServerSettings(**values, limits=Limits(**limits))
    origins = {key: item.source for key, item in given.items()}
    return Resolved(settings, origins, tuple(warnings))
