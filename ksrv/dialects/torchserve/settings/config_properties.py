"""Reads a TorchServe config.properties, and translates the keys for which ksrv has a setting: `translate`.

A report names every other key and why it has no effect. The file is read as TorchServe reads it: `key=value`, `#`
comments, Java's escapes, a backslash that continues a line, and variables of the environment as `$$NAME$$`. With
`enable_envvars_config=true` the variable `TS_KEY` overrides a key; KServe's runtime sets `service_envelope` so.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ksrv.dialects.torchserve.archive.defaults import ArchiveDefaults
from ksrv.dialects.torchserve.archive.format import torchserve_format
from ksrv.dialects.torchserve.settings.metrics_file import read_metrics_file
from ksrv.handlers.devices.choice import nvidia_gpus
from ksrv.machine.cgroups import usable_cores
from ksrv.repository.format import Format
from ksrv.repository.report import Report

T = TypeVar("T")

DEFAULT_GRPC_PORT = 7070
ENVIRONMENT_WINS = "enable_envvars_config"
"""The key that makes variables of the environment override the file."""
VARIABLE_PREFIX = "TS_"

_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VARIABLE = re.compile(r"\$\$([^$]{2,})\$\$")
_EXAMPLE = '{"m": {"1.0": {"minWorkers": 1}}}'
_REASONS = {
    "management_address": "the repository's routes are on the inference address",
    "metrics_address": "/metrics is on the inference address",
    "grpc_management_address": "the management service is on the address of the setting grpc",
    "grpc_management_port": "the management service is on the address of the setting grpc",
    "install_py_dep_per_model": "ksrv installs no packages; name an environment in python: of model.yaml",
    "private_key_file": "the inference_address is not https",
    "certificate_file": "the inference_address is not https",
    "keystore": "TLS takes PEM files: certificate_file and private_key_file",
    "keystore_pass": "TLS takes PEM files: certificate_file and private_key_file",
    "keystore_type": "TLS takes PEM files: certificate_file and private_key_file",
    "enable_grpc_ssl": "gRPC speaks TLS where the inference_address is https, and only there",
    "cors_allowed_origin": "CORS headers are left to a proxy",
    "cors_allowed_methods": "CORS headers are left to a proxy",
    "cors_allowed_headers": "CORS headers are left to a proxy",
    "enable_metrics_api": "metrics are a setting of ksrv",
    "metrics_mode": "/metrics is always Prometheus text",
    "model_metrics_auto_detect": "every metric of a handler is on /metrics, declared or not",
    "disable_token_authorization": "tokens are asked for when token_file is set",
}
"""Why a key has no effect."""


class _Snapshot(msgspec.Struct):
    """The value of `model_snapshot`: settings by model and version."""

    models: dict[str, dict[str, dict[str, Any]]] = {}


class ConfigPropertiesError(ValueError):
    """A config.properties that cannot be read. The text names the file and the key."""


@dataclass(slots=True)
class Translated(Report):
    """The settings that a config.properties asks for, and the report on its keys.

    Attributes:
        settings: Server settings by dotted key.
        defaults: The defaults for archives, and settings of models by name.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    defaults: ArchiveDefaults = field(default_factory=ArchiveDefaults)

    @property
    def format(self) -> Format:
        """TorchServe's readers with these defaults."""
        return torchserve_format(self.defaults)


def read_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a properties file. If a key is repeated, its last value counts.

    The rules are documented at Java's Properties.load:
    https://docs.oracle.com/javase/8/docs/api/java/util/Properties.html
    """
    found = {}
    lines = iter(re.split(r"\r\n?|\n", text))
    for line in map(str.lstrip, lines):
        if line.startswith(("#", "!")):  # a comment ends with its line, even after a backslash
            continue
        while _CONTINUED.search(line):
            line = line[:-1] + next(lines, "").lstrip()
        if match := _PAIR.fullmatch(line):
            found[_unescaped(match[1])] = _unescaped(match[2].strip())
    return found


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[2])

    # Java writes a character beyond 16 bits as two escapes, a surrogate pair.
    units = _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")


def translate(path: Path, environment: Mapping[str, str] = os.environ) -> Translated:
    """Return the settings that a config.properties asks for.

    Args:
        environment: The variables that `$$NAME$$` names and that may override keys.

    Raises:
        ConfigPropertiesError: The file or a value cannot be read.
    """
    try:
        properties = read_properties(_text(path.read_bytes()))
    except OSError as error:
        raise ConfigPropertiesError(
            f"{path} cannot be read: {error.strerror}; expected TorchServe's config.properties"
        ) from error
    for key, value in properties.items():
        properties[key] = _with_variables(path, key, value, environment)
    if properties.pop(ENVIRONMENT_WINS, "").lower() == "true":
        # TS_CONFIG_FILE names this file, and is not a key of it.
        properties |= {
            name.removeprefix(VARIABLE_PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(VARIABLE_PREFIX) and value and name != "TS_CONFIG_FILE"
        }
    return _Translation(path, properties).run()


def _text(content: bytes) -> str:
    """Decode a properties file: UTF-8 if it is valid UTF-8, as paths mostly are, else ISO-8859-1 as Java reads all."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _with_variables(path: Path, key: str, value: str, environment: Mapping[str, str]) -> str:
    def value_of(variable: re.Match[str]) -> str:
        name = variable[1]
        if name not in environment:
            raise ConfigPropertiesError(
                f"{path}: {key}={value[:1024]!r} names the environment variable {name}, which is not set; set it, or"
                f" write the value in its place"
            )
        return environment[name]

    return _VARIABLE.sub(value_of, value)


class _Translation:
    """Translates the keys of one file. `_left` has the keys that no setting has used yet."""

    def __init__(self, path: Path, properties: dict[str, str]) -> None:
        self._path = path
        self._left = dict(properties)
        self._result = Translated()
        self._snapshot: dict[str, dict[str, dict[str, Any]]] | None = None

    def run(self) -> Translated:
        result = self._result
        # Who has TorchServe's settings has TorchServe's clients. A flag or a variable of ksrv can override it.
        result.settings["torchserve_api"] = True
        self._certificates()
        self._setting("inference_address", "http", _http_address)
        self._grpc()
        self._setting("max_request_size", "limits.body", _int)
        self._choose_archives()
        result.defaults = ArchiveDefaults(
            workers=self._workers(),
            response_timeout_s=self._take("default_response_timeout", _int, "s for a batch") or 120,
            startup_timeout_s=self._take("default_startup_timeout", _int, "s to get ready") or 120,
            queue_size=self._take("job_queue_size", _int, "requests may wait") or 100,
            envelope=self._take("service_envelope", str, "envelope of every archive") or None,
            decode=self._take("decode_input_request", _flag, "parts are decoded") is not False,
            models={
                **(self._take("models", _settings_by_model, "settings by model and version") or {}),
                **(self._snapshot or {}),
            },
            metrics=self._take("metrics_config", _declared_metrics, "metrics that handlers find")
            or (),
        )
        for key in self._left:
            result.ignored[key] = _REASONS.get(key, "ksrv has nothing that it would change")
        return result

    def _workers(self) -> int:
        """Return the number of processes of a model. 0 means one for each GPU, or for each processor without GPUs."""
        key = "default_workers_per_model"
        count: int | None = self._take(key, _int, "processes of a model", least=0)
        if count != 0:
            return count or 1
        gpus = nvidia_gpus()
        if gpus:
            most = self._take("number_of_gpu", _int, f"GPUs at most count for {key}", least=0)
            gpus = gpus if most is None else min(gpus, most)
        count = gpus or usable_cores()
        unit = "GPU" if gpus else "processor"
        self._result.applied[key] = f"{count} processes of a model, one for each {unit}"
        return count

    def _take(
        self, key: str, convert: Callable[[str], Any], meaning: str, *, least: int = 1
    ) -> Any:
        """Take a key out of `_left`, and put it into the report as applied.

        Args:
            meaning: The end of the line in the report, after the value.
            least: The least value of a number.

        Returns:
            The converted value, or None if the file does not have the key.
        """
        text = self._left.pop(key, None)
        if text is None:
            return None
        try:
            if "\0" in text:
                raise ValueError("it holds a NUL character")
            value = convert(text)
        except (ValueError, TypeError, RecursionError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise ConfigPropertiesError(
                f"{self._path}: {key}={text[:1024]!r} is not accepted: {reason}"
            ) from None
        if type(value) is int and value < least:
            raise ConfigPropertiesError(
                f"{self._path}: {key} must be at least {least}, not {value}"
            )
        if isinstance(value, dict):
            self._result.applied[key] = meaning
        else:
            number = len(value) if isinstance(value, tuple) else value
            self._result.applied[key] = f"{number} {meaning}"
        return value

    def _setting(self, key: str, setting: str, convert: Callable[[str], Any]) -> None:
        value = self._take(key, convert, f"becomes the setting {setting}")
        if value is not None:
            self._result.settings[setting] = value

    def _certificates(self) -> None:
        """Set the certificates for TLS, which the scheme of the address switches on, as in TorchServe."""
        address = self._left.get("inference_address", "")
        if not address.lower().startswith("https://"):
            return
        for key, setting in (("certificate_file", "tls_cert"), ("private_key_file", "tls_key")):
            if not self._left.get(key):
                raise ConfigPropertiesError(
                    f"{self._path}: inference_address={address!r} needs a {key}, in PEM; key stores"
                    f" are not read"
                )
            self._setting(key, setting, str)

    def _grpc(self) -> None:
        address = self._take("grpc_inference_address", str, "becomes the host of the setting grpc")
        port = self._take("grpc_inference_port", _int, "becomes the port of the setting grpc")
        if address or port:
            self._result.settings["grpc"] = f"{address or '127.0.0.1'}:{port or DEFAULT_GRPC_PORT}"

    def _choose_archives(self) -> None:
        """Set `models`: the whole model_store, or the archives that load_models or model_snapshot names."""
        store = self._take("model_store", str, "is where archives are looked for")
        archives: list[str] = []

        def read_snapshot(text: str) -> dict[str, dict[str, dict[str, Any]]]:
            found, names = _snapshot(text)
            archives.extend(names)
            return found

        self._snapshot = self._take("model_snapshot", read_snapshot, "archives and their settings")
        chosen = self._take("load_models", str, "says which archives are served")
        if archives:  # as in TorchServe, a snapshot overrides load_models
            chosen = ",".join(archives)
        kind = (chosen or "none").lower()
        if not store or kind in ("none", "n/a"):
            return
        if kind == "all":
            self._result.settings["models"] = [store]
            return
        paths = []
        store_folder = Path(realpath(store))
        for entry in chosen.split(","):
            name = entry.rpartition("=")[2].strip()
            if not name:  # as in `a.mar,`
                continue
            if (
                "://" in name
                or "\0" in name
                or store_folder not in Path(realpath(Path(store, name))).parents
            ):
                raise ConfigPropertiesError(
                    f"{self._path}: load_models or model_snapshot names {name!r}; only archives inside"
                    f" model_store are served"
                )
            if "=" in entry:
                self._result.ignored["load_models names"] = "a model's name comes from its manifest"
            paths.append(str(Path(store, name)))
        self._result.settings["models"] = paths


def _http_address(text: str) -> str:
    if text.startswith("unix:/"):
        return text
    expected = "expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(expected) from None
    if parts.scheme not in ("", "http", "https") or not host:
        raise ValueError(expected)
    usual = 443 if parts.scheme == "https" else 80
    return f"{f'[{host}]' if ':' in host else host}:{usual if port is None else port}"


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _declared_metrics(text: str) -> tuple[dict[str, Any], ...]:
    return tuple(read_metrics_file(Path(text)))


def _snapshot(text: str) -> tuple[dict[str, dict[str, dict[str, Any]]], list[str]]:
    """Return the settings of the models in a server's snapshot, and the file names of their archives."""
    models = _decoded(text, _Snapshot).models
    archives = []
    for name, versions in models.items():
        for version, keys in versions.items():
            archive = keys.get("marName")
            if not isinstance(archive, str) or not archive:
                raise TypeError(
                    f"the version {version} of the model {name!r} needs a marName, the archive's file"
                )
            archives.append(archive)
    return models, archives


def _settings_by_model(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    return _decoded(text, dict[str, dict[str, dict[str, Any]]])


def _decoded(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{error}; expected models, such as {_EXAMPLE}") from None
