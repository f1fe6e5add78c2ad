"""Renders the kustomization features that deploy/kubernetes uses, and refuses all others.

Kustomize itself is a Go program that no Python registry has. The hash suffix in the names of generated config maps is
left out on purpose.
"""

from copy import deepcopy
from pathlib import Path

import yaml

KNOWN = {
    "apiVersion", "kind", "labels", "namespace", "resources", "components", "configMapGenerator",
    "patches", "images",
}  # fmt: skip
LISTS_BY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}


def render(folder):
    """Return the objects that `kubectl kustomize FOLDER` prints."""
    return _build(Path(folder), [])


def _build(folder, objects):
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert not set(told) - KNOWN, (folder, set(told) - KNOWN)
    for name in told.get("resources", ()):
        path = (folder / name).resolve()
        if path.is_dir():
            objects = objects + _build(path, [])
        else:
            objects = objects + [one for one in yaml.safe_load_all(path.read_text()) if one]
    objects = _generate(told.get("configMapGenerator", ()), folder, objects)
    for name in told.get("components", ()):
        objects = _build((folder / name).resolve(), objects)
    for patch in told.get("patches", ()):
        objects = _patched(patch, objects)
    return [_finished(one, told) for one in objects]


def _generate(generators, folder, objects):
    for generator in generators:
        assert not set(generator) - {"name", "behavior", "literals", "files"}
        data = dict(line.split("=", 1) for line in generator.get("literals", ()))
        data |= {
            Path(name).name: (folder / name).read_text() for name in generator.get("files", ())
        }
        same = [
            one for one in objects
            if one["kind"] == "ConfigMap" and one["metadata"]["name"] == generator["name"]
        ]  # fmt: skip
        if generator.get("behavior") == "merge":
            [found] = same
            found["data"] |= data
        else:
            assert not same, generator["name"]
            made = {"apiVersion": "v1", "kind": "ConfigMap", "data": data}
            objects = [*objects, made | {"metadata": {"name": generator["name"]}}]
    return objects


def _patched(patch, objects):
    target, change = patch["target"], yaml.safe_load(patch["patch"])
    assert set(target) == {"kind", "name"}
    found = [
        place for place, one in enumerate(objects)
        if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]
    ]  # fmt: skip
    [place] = found
    objects = list(objects)
    if isinstance(change, list):
        objects[place] = _operated(deepcopy(objects[place]), change)
    else:
        objects[place] = _merged(objects[place], change)
    return objects


def _operated(document, operations):
    for operation in operations:
        *way, last = operation["path"].strip("/").split("/")
        at = document
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        if isinstance(at, list):
            last = int(last)
        assert last in at if isinstance(at, dict) else last < len(at), operation
        if operation["op"] == "remove":
            del at[last]
        else:
            assert operation["op"] == "replace", operation
            at[last] = operation["value"]
    return document


def _merged(old, new, name=""):
    if isinstance(old, dict) and isinstance(new, dict):
        keys = {**old, **new}
        return {
            key: _merged(old[key], new[key], key) if key in old and key in new else keys[key]
            for key in keys
        }
    if isinstance(new, list) and (by := LISTS_BY.get(name)):
        merged = {item[by]: item for item in old}
        for item in new:
            merged[item[by]] = _merged(merged[item[by]], item) if item[by] in merged else item
        return list(merged.values())
    return new


def _finished(one, told):
    one = deepcopy(one)
    for labels in told.get("labels", ()):
        assert set(labels) == {"pairs", "includeTemplates"}
        places = [one] + ([one["spec"]["template"]] if one["kind"] == "Deployment" else [])
        for place in places:
            metadata = place.setdefault("metadata", {})
            metadata["labels"] = metadata.get("labels", {}) | labels["pairs"]
    if "namespace" in told and one["kind"] != "Namespace":
        one["metadata"]["namespace"] = told["namespace"]
    for image in told.get("images", ()):
        for container in _containers(one):
            if container["image"].split(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return one


def _containers(one):
    spec = one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else {}
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]
