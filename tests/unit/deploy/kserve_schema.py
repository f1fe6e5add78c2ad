"""Checks KServe objects against the classes of KServe's Python package.

The package ships no CRDs, but its classes are generated from the same Go types: each names its fields,
their types and, in its setters, which of them must be there. They are read, not imported: an import
of `kserve` wants some thirty packages. Kubernetes' own types inside of them are checked against
Kubernetes' schemas.
"""

import ast
import functools
import json
import re

import pytest

from tests.unit.deploy.packages import need

PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
KUBERNETES = "1.37.0"


class Schema:
    """The classes of one installed `kserve`."""

    def __init__(self, package):
        self._models = package / "models"
        self._classes = {}

    def errors(self, document):
        """Yield a sentence for each field that KServe's API server would reject."""
        version, kind = document["apiVersion"].split("/")[1], document["kind"]
        yield from self._object(document, version.capitalize() + kind, kind)

    def _load(self, name):
        if name not in self._classes:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            squeezed = words.replace("_", "")
            [path] = [
                path for path in self._models.glob("*.py") if path.stem.replace("_", "") == squeezed
            ]
            text = path.read_text()
            [body] = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef)]
            values = {
                one.targets[0].id: ast.literal_eval(one.value)
                for one in body.body
                if isinstance(one, ast.Assign)
            }
            needed = set(re.findall(r"Invalid value for `(\w+)`, must not be `None`", text))
            fields = {
                wire: (values["openapi_types"][field], field in needed)
                for field, wire in values["attribute_map"].items()
            }
            self._classes[name] = fields
        return self._classes[name]

    def _object(self, value, name, where):
        if not isinstance(value, dict):
            yield f"{where} is not a mapping"
            return
        fields = self._load(name)
        for key in value.keys() - fields.keys():
            yield f"{where} has no field {key}"
        for key, (kind, needed) in fields.items():
            if key in value:
                yield from self._value(value[key], kind, f"{where}.{key}")
            elif needed:
                yield f"{where} needs {key}"

    def _value(self, value, kind, where):
        if kind in PLAIN:
            if not isinstance(value, PLAIN[kind]) or (kind == "int" and isinstance(value, bool)):
                yield f"{where} is not a {kind}"
        elif match := re.fullmatch(r"list\[(\w+)\]", kind):
            if not isinstance(value, list):
                yield f"{where} is not a list"
                return
            for place, item in enumerate(value):
                yield from self._value(item, match[1], f"{where}[{place}]")
        elif match := re.fullmatch(r"dict\(str, (\w+)\)", kind):
            for key, item in value.items():
                yield from self._value(item, match[1], f"{where}.{key}")
        elif kind == "ResourceQuantity":
            if not isinstance(value, str):
                yield f"{where} is not a quantity"
        elif list(self._models.glob(f"{kind[:3].lower()}*")) and re.match(r"V1(alpha|beta)", kind):
            yield from self._object(value, kind, where)
        else:
            yield from _kubernetes(value, kind, where)


def _kubernetes(value, kind, where):
    name = re.sub(r"^(K8sIoApi[A-Z][a-z]+)?V\d+", "", kind)
    definitions = _definitions()
    [key] = [one for one in definitions if re.search(rf"\.(core|apps|meta)\.v1\.{name}$", one)]
    whole = {"$ref": f"#/$defs/{key}", "$defs": definitions}
    jsonschema = pytest.importorskip("jsonschema")
    for error in jsonschema.Draft202012Validator(whole).iter_errors(value):
        yield f"{where}: {error.message}"


@functools.cache
def _definitions():
    text = (_folder() / "_definitions.json").read_text().replace("_definitions.json#", "#")
    return json.loads(text)["$defs"]


def _folder():
    schemas = need("kubernetes_validate") / "kubernetes-json-schema"
    return schemas / f"v{KUBERNETES}-local-strict"
