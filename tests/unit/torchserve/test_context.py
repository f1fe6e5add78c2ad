"""The context of TorchServe's handlers: headers, statuses, attributes of the handler's own."""

import json

import pytest

from ksrv.torchserve.api.context import Context, RequestHeaders, RequestProcessor


def context(**headers):
    made = Context("m", "/models/m", {"model": {}}, 4, None, "0.12.0")
    made.request_processor = [RequestProcessor(RequestHeaders(headers))]
    made.request_ids = {0: "one"}
    return made


@pytest.mark.parametrize("name", ["X-My-Header", "x-my-header", "X-MY-HEADER"])
def test_headers_are_found_in_any_case(name):
    made = context(**{"X-My-Header": "v", "explain": "False"})
    assert made.get_request_header(0, name) == "v"
    headers = made.get_all_request_header(0)
    assert (headers[name], headers.get(name), name in headers) == ("v", "v", True)


def test_headers_that_were_not_sent():
    headers = context(explain="False").get_all_request_header(0)
    assert headers.get("x") is None
    assert headers.get("x", 3) == 3
    assert 3 not in headers
    with pytest.raises(KeyError, match="'x'"):
        headers["x"]


def test_headers_are_a_plain_dict_to_everything_else():
    headers = context(**{"X-A": "1"}).get_all_request_header(0)
    assert isinstance(headers, dict)
    assert headers == {"X-A": "1"}
    assert (json.dumps(headers), repr(headers)) == ('{"X-A": "1"}', "{'X-A': '1'}")
    assert list({**headers}) == ["X-A"]


def test_statuses_and_response_headers_belong_to_a_request():
    made = context()
    made.request_processor.append(RequestProcessor(RequestHeaders()))
    made.set_response_status(418, "Teapot", 1)
    made.set_response_header(1, "x-a", "b")
    made.set_response_content_type(1, "text/x-q")
    assert [made.get_response_status(row) for row in (0, 1)] == [(200, None), (418, "Teapot")]
    assert [made.get_response_headers(row) for row in (0, 1)] == [
        {},
        {"x-a": "b", "content-type": "text/x-q"},
    ]
    assert made.get_response_content_type(1) == "text/x-q"
    made.set_all_response_status(503, "no")
    assert [made.get_response_status(row)[0] for row in (0, 1)] == [503, 503]


def test_handlers_may_keep_things_on_the_context():
    made = context()
    made.cache = {"a": 1}
    assert made.cache == {"a": 1}
    assert made.get_request_id() == "one"
    assert made.get_request_id(7) is None
    assert made == made
    assert made != context()
