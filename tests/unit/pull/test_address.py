"""Addresses whose package is missing, and addresses of no store."""

import sys

import pytest

from ksrv.pull.source import PullError, open_source


@pytest.mark.parametrize(
    ("uri", "package"),
    [("s3://b/a", "obstore"), ("https://h/a", "obstore"), ("hf://a/b", "huggingface_hub")],
)
def test_missing_package_is_named(monkeypatch, uri, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PullError, match=f"pip install .*{package}"):
        open_source(uri)


@pytest.mark.parametrize(
    "uri", ["http://host/x", "ftp://x/y", "cats", "", "file:///etc", "\x1b[2J"]
)
def test_unknown_kind_of_address_names_the_known(uri):
    with pytest.raises(PullError, match="expected s3://") as caught:
        open_source(uri)
    assert "\x1b" not in str(caught.value)
