"""Commands against a server whose metadata omits fields, or has values that the protocol does not define."""

import click
import pytest

from ksrv.client.command.code import inputs_of
from ksrv.client.command.values import values_of


def test_metadata_without_inputs_declare_none():
    assert inputs_of({"name": "m"}) == ()
    assert values_of([], ["what a day"], {"name": "m"}) == {"data": ["what a day"]}


def test_an_unknown_datatype_is_named():
    entry = {"name": "x", "datatype": "FP99", "shape": [100]}
    with pytest.raises(click.ClickException, match="'x' has the datatype 'FP99'"):
        inputs_of({"inputs": [entry]})
