"""Reading a config.pbtxt: the values that protobuf prints, the line of each key, and any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksrv.dialects.triton.config.text_format import read_text_format
from ksrv.model.fault import ConfigError

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


LINES = """\
# a note
input [
  { name: 'x' "y" dims: [
    1,
    -1 ] },
  < name: "z"; dims: 1 dims:
    2 >
]
parameters { key: "a" value { string_value: "b" } }
parameters {
  key: "c"
}
"""


def test_lines_of_keys(tmp_path):
    keys, document = read_text_format(tmp_path / "config.pbtxt", LINES)
    assert [one.name for one in keys.input] == ["xy", "z"]
    assert [one.dims for one in keys.input] == [[1, -1], [1, 2]]
    for path, line in (
        (("input", 0, "name"), 3),
        (("input", 0, "dims", 1), 5),
        (("input", 1), 6),
        (("input", 1, "dims", 1), 7),
        (("parameters", 1), 10),
        (("parameters", 1, "key"), 11),
    ):
        with pytest.raises(ConfigError, match=f"config.pbtxt, line {line}: "):
            document.fail(path, "wrong")


TOKENS = st.sampled_from(
    ["name", "max_batch_size", "input", "dims", "parameters", ":", ":", "{", "}", "<", ">", "[", "]", ",", ";",
     " ", "\n", "# note\n", '"a"', "'b'", '"\\x41\\101\\n"', '"\\q"', '"open', "1", "-7", "0x1F", "017", "09",
     "TYPE_FP32", "input { name: 'x' dims: [1, 2] }", "max_batch_size: 5", "unknown: 1"]
)  # fmt: skip


@given(st.lists(TOKENS, max_size=14).map(" ".join) | texts)
def test_any_text_is_read_or_refused_with_its_line(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "config.pbtxt"
    try:
        read_text_format(path, text)
    except ConfigError as error:
        found = str(error)
    else:
        return
    assert found.startswith(f"{path}, line ")
