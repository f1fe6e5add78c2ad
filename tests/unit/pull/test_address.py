"""Addresses whose package is missing, and addresses of no store."""

import sys

import pytest

from ksrv.pull.address import open_source
from ksrv.pull.source import PullError


@pytest.mark.parametrize("uri", ["s3://bucket/cats", "https://host/cats.onnx"])
def test_missing_package_is_named(monkeypatch, uri):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(PullError, match=r"pip install .*obstore"):
        open_source(uri)


@pytest.mark.parametrize(
    "uri", ["http://host/x", "ftp://x/y", "cats", "", "https:/x", "s3:x", "file:///etc", "\x1b[2J"]
)
def test_unknown_kind_of_address_names_the_known(uri):
    with pytest.raises(PullError, match="expected s3://") as caught:
        open_source(uri)
    assert "\x1b" not in str(caught.value)
