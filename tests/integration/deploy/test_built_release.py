"""The files that `make release` has built, in the folder that KSRV_RELEASE names (`make test-release`)."""

import hashlib
import json
import os
import re
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("KSRV_RELEASE", "/nonexistent"))
WHEELS = sorted(FOLDER.glob("*.whl"))

pytestmark = pytest.mark.skipif(not WHEELS, reason="KSRV_RELEASE names no folder with wheels")


def validate(document):
    validation = pytest.importorskip("cyclonedx.validation.json")
    from cyclonedx.schema import SchemaVersion

    version = SchemaVersion.from_version(json.loads(document)["specVersion"])
    assert validation.JsonStrictValidator(version).validate_str(document) is None


@pytest.fixture(params=WHEELS, ids=lambda path: path.name)
def wheel(request):
    with zipfile.ZipFile(request.param) as archive:
        yield archive


def bill(wheel):
    [name] = [name for name in wheel.namelist() if "/sboms/" in name]
    assert re.fullmatch(r"ksrv-[\d.]+\.dist-info/sboms/ksrv\.cdx\.json", name)
    return wheel.read(name).decode()


def test_wheel_carries_the_libraries_and_its_bill_lists_each(wheel):
    components = json.loads(bill(wheel))["components"]
    listed = {
        one["evidence"]["occurrences"][0]["location"]: one
        for one in components
        if "evidence" in one
    }
    carried = {name for name in wheel.namelist() if ".so" in name and "/_core." not in name}
    assert set(listed) == carried
    assert {one["name"] for one in listed.values()} == {"nghttp2", "libjpeg-turbo"}
    for name, one in listed.items():
        [digest] = one["hashes"]
        assert digest["content"] == hashlib.sha256(wheel.read(name)).hexdigest()
        assert one["purl"].startswith("pkg:") and one["licenses"] and one["cpe"]


def test_bill_is_valid(wheel):
    validate(bill(wheel))


def test_wheel_runs_on_the_platforms_of_its_name(wheel):
    name = Path(wheel.filename).name
    assert re.fullmatch(r"ksrv-[\d.]+-cp3\d+-cp3\d+-manylinux_2_\d+_\w+\.whl", name)
    [description] = [one for one in wheel.namelist() if one.endswith(".dist-info/WHEEL")]
    tags = re.findall(r"^Tag: (.*)$", wheel.read(description).decode(), re.MULTILINE)
    assert tags and set("-".join(tags).split("-")) >= set(name.removesuffix(".whl").split("-")[2:])


@pytest.mark.parametrize("kind", ["vex", "runtime"])
def test_documents_are_valid(kind):
    [path] = FOLDER.glob(f"ksrv-*.{kind}.cdx.json")
    validate(path.read_text())


def test_vex_names_the_libraries_that_wheels_carry():
    [path] = FOLDER.glob("ksrv-*.vex.cdx.json")
    named = {one["purl"].partition("@")[0] for one in json.loads(path.read_text())["components"]}
    assert "pkg:pypi/orjson" in named and any("nghttp2" in purl for purl in named)


def test_no_file_names_a_folder_of_the_machine_that_built_it():
    for path in FOLDER.glob("*.json"):
        assert not re.search(r"/(root|home|tmp)/|file://", path.read_text()), path.name
