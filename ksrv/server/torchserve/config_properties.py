"""Reads a TorchServe config.properties and translates what ksrv has a setting for.

A report names every other key with the reason, so that no key seems to work that does not. Values are read
as TorchServe reads them: `key=value`, `#` comments, a backslash that continues a line. With `enable_envvars_config=true` the variable
`TS_KEY` wins over a key, as KServe's runtime gives `service_envelope`.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ksrv.repository.torchserve.defaults import ArchiveDefaults
from ksrv.torchserve.metrics_file import read_metrics_file

DEFAULT_GRPC_PORT = 7070
ENVIRONMENT_WINS = "enable_envvars_config"
VARIABLE_PREFIX = "TS_"

_PAIR = re.compile(r"([^=:\s]+)\s*[=:\s]\s*(.*)", re.DOTALL)
_REASONS = {
    "management_address": "the repository's routes are on the inference address",
    "metrics_address": "/metrics is on the inference address",
    "grpc_management_address": "the management service is on the address of the setting grpc",
    "grpc_management_port": "the management service is on the address of the setting grpc",
    "install_py_dep_per_model": "ksrv import --install-requirements installs on request",
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


class ConfigPropertiesError(ValueError):
    """A config.properties that cannot be read; the text names file and key."""


@dataclass(slots=True)
class Translated:
    """The settings that a config.properties asks for.

    Attributes:
        settings: Server settings by dotted key.
        defaults: The settings of archives that have none of their own.
        applied: Keys that were translated, with what they mean here.
        ignored: Keys that change nothing, with the reason.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    defaults: ArchiveDefaults = field(default_factory=ArchiveDefaults)
    applied: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report, one key a line."""
        return [f"{key}: {meaning}" for key, meaning in self.applied.items()] + [
            f"{key}: ignored, {reason}" for key, reason in self.ignored.items()
        ]


def read_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a properties file; of one key the last value stays."""
    found = {}
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    for line in joined.splitlines():
        line = line.strip()
        match = _PAIR.fullmatch(line)
        if match and not line.startswith(("#", "!")):
            found[match[1]] = match[2].strip()
    return found


def translate(path: Path, environment: Mapping[str, str] = os.environ) -> Translated:
    """Return what a config.properties asks for.

    Args:
        environment: The variables that may win over its keys.

    Raises:
        ConfigPropertiesError: It cannot be read, or a value cannot be.
    """
    try:
        properties = read_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigPropertiesError(
            f"{path} cannot be read: {reason}; expected TorchServe's config.properties"
        ) from error
    if properties.pop(ENVIRONMENT_WINS, "").lower() == "true":
        properties |= {
            name.removeprefix(VARIABLE_PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(VARIABLE_PREFIX) and value and name != "TS_CONFIG_FILE"
        }
    return _Translation(path, properties).run()


class _Translation:
    def __init__(self, path: Path, properties: dict[str, str]) -> None:
        self._path = path
        self._left = dict(properties)
        self._result = Translated()
        self._snapshot: dict[str, dict[str, dict[str, Any]]] | None = None

    def run(self) -> Translated:
        result = self._result
        # TorchServe's settings imply TorchServe's clients; a flag or variable may say otherwise.
        result.settings["torchserve_api"] = True
        self._certificates()
        self._setting("inference_address", "http", _http_address)
        self._grpc()
        self._setting("max_request_size", "limits.body", _int)
        self._models()
        result.defaults = ArchiveDefaults(
            workers=self._take("default_workers_per_model", _int, "processes of a model") or 1,
            response_timeout_s=self._take("default_response_timeout", _int, "s for a batch") or 120,
            startup_timeout_s=self._take("default_startup_timeout", _int, "s to get ready") or 120,
            queue_size=self._take("job_queue_size", _int, "requests may wait") or 100,
            envelope=self._take("service_envelope", str, "envelope of every archive") or None,
            decode=self._take("decode_input_request", _flag, "parts are decoded") is not False,
            models={
                **(self._take("models", _models, "settings by model and version") or {}),
                **(self._snapshot or {}),
            },
            metrics=self._take("metrics_config", _metrics, "metrics that handlers find") or (),
        )
        for key in self._left:
            result.ignored[key] = _REASONS.get(key, "ksrv has nothing that it would change")
        return result

    def _take(self, key: str, convert: Callable[[str], Any], meaning: str) -> Any:
        text = self._left.pop(key, None)
        if text is None:
            return None
        try:
            value = convert(text)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigPropertiesError(
                f"{self._path}: {key}={text!r} is not accepted: {error}"
            ) from None
        if type(value) is int and value < 1:
            raise ConfigPropertiesError(f"{self._path}: {key} must be at least 1, not {value}")
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
        """As in TorchServe, the scheme of the address decides whether there is TLS."""
        address = self._left.get("inference_address", "")
        if urlsplit(address).scheme != "https":
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

    def _models(self) -> None:
        store = self._take("model_store", str, "is where archives are looked for")
        archives: list[str] = []

        def read_snapshot(text: str) -> dict[str, dict[str, dict[str, Any]]]:
            found, names = _snapshot(text)
            archives.extend(names)
            return found

        self._snapshot = self._take("model_snapshot", read_snapshot, "archives and their settings")
        chosen = self._take("load_models", str, "says which archives are served")
        if archives:  # TorchServe serves what it served before, whatever load_models says
            chosen = ",".join(archives)
        if not store or chosen in (None, "", "none", "N/A"):
            return
        if chosen == "all":
            self._result.settings["models"] = [store]
            return
        paths = []
        for entry in chosen.split(","):
            name = entry.rpartition("=")[2].strip()
            if "://" in name or not Path(store, name).resolve().is_relative_to(
                Path(store).resolve()
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
    parts = urlsplit(text if "//" in text else f"//{text}")
    if parts.scheme not in ("", "http", "https") or not parts.hostname:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = 443 if parts.scheme == "https" else 80
    return f"{host}:{usual if parts.port is None else parts.port}"


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _metrics(text: str) -> tuple[dict[str, Any], ...]:
    return tuple(read_metrics_file(Path(text)))


def _snapshot(text: str) -> tuple[dict[str, dict[str, dict[str, Any]]], list[str]]:
    """Return the settings and the archives of the models that a server had when it wrote its snapshot."""
    document = json.loads(text)
    models = document.get("models", {}) if isinstance(document, dict) else None
    if not isinstance(models, dict):
        raise TypeError('expected a JSON object with "models"')
    archives = []
    for name, versions in models.items():
        if not isinstance(versions, dict) or not all(
            isinstance(one, dict) for one in versions.values()
        ):
            raise TypeError(
                f'the model {name!r} needs an object for each version, such as {{"1.0": {{"marName": "m.mar"}}}}'
            )
        for version, keys in versions.items():
            archive = keys.get("marName")
            if not isinstance(archive, str) or not archive:
                raise TypeError(
                    f"the version {version} of the model {name!r} needs a marName, the archive's file"
                )
            archives.append(archive)
    return _models(json.dumps(models)), archives


def _models(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    document = json.loads(text)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, versions in document.items():
        for version, keys in versions.items():
            kept = {
                key: value
                for key, value in keys.items()
                if key not in ("defaultVersion", "marName")
            }
            found.setdefault(name, {})[version] = kept
    return found
