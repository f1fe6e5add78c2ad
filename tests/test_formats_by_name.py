"""Only the folders of a foreign format name it, and the few files that list the formats or describe them to users."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".cpp", ".hpp")

LIST = "the list of the formats"
USERS = "a setting, a flag or a text that users read"
SOURCE = "where a rule of the answers comes from"

NAMES = {
    "torchserve": (
        ("ksrv/", "native/"),
        ("ksrv/dialects/torchserve/",),
        {
            "ksrv/cli/import_archive.py": USERS,
            "ksrv/cli/init.py": USERS,
            "ksrv/cli/serve.py": USERS,
            "ksrv/handlers/builtin/contractions.py": SOURCE,
            "ksrv/handlers/builtin/image_classifier.py": SOURCE,
            "ksrv/handlers/builtin/image_segmenter.py": SOURCE,
            "ksrv/handlers/builtin/integrated_gradients.py": SOURCE,
            "ksrv/handlers/builtin/object_detector.py": SOURCE,
            "ksrv/handlers/builtin/tokenizer.py": SOURCE,
            "ksrv/handlers/loading.py": USERS,
            "ksrv/repository/formats.py": LIST,
            "ksrv/server/formats.py": LIST,
            "ksrv/server/settings.py": USERS,
            "ksrv/server/settings_sources.py": LIST,
            "ksrv/testing/models.py": "takes a format's modules out of a test's process",
        },
    ),
    # The protocols that these servers share with KServe are named in ksrv.protocol, ksrv.server and ksrv.client.
    r"triton(?!_)|openvino|ovms": (
        (
            "ksrv/engine/",
            "ksrv/_native/",
            "ksrv/handlers/",
            "ksrv/images/",
            "ksrv/loaders/",
            "ksrv/repository/",
            "ksrv/request.py",
            "ksrv/model/",
            "native/",
        ),
        ("ksrv/loaders/openvino.py",),
        {
            "ksrv/handlers/compile.py": "names of torch's compilers",
            "ksrv/images/preparer.py": SOURCE,
            "ksrv/loaders/choice.py": "the list of the loaders",
            "ksrv/repository/formats.py": LIST,
            "ksrv/repository/layout.py": USERS,
            "ksrv/model/input_rules.py": SOURCE,
            "ksrv/model/spec.py": SOURCE,
        },
    ),
}


def named_in(name: str, folders: tuple[str, ...], own: tuple[str, ...]) -> set[str]:
    """The sources below `folders` that name a format, without the format's folders."""
    found = set()
    for path in (ROOT / folder for folder in folders):
        for file in [path] if path.is_file() else path.rglob("*"):
            relative = file.relative_to(ROOT).as_posix()
            if file.suffix not in SUFFIXES or relative.startswith(own):
                continue
            if re.search(name, file.read_text(encoding="utf-8"), re.IGNORECASE):
                found.add(relative)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_format_is_named_only_in_its_folders(name):
    folders, own, known = NAMES[name]
    assert named_in(name, folders, own) == set(known)


def test_requests_batches_and_settings_know_no_format():
    words = re.compile("torchserve|triton|openvino", re.IGNORECASE)
    for name in (
        "request.py",
        "model/config.py",
        "_native/batch/batch.pyx",
        "engine/processes/messages.py",
    ):
        assert not words.search((ROOT / "ksrv" / name).read_text(encoding="utf-8")), name
