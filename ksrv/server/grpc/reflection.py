"""Answers grpc.reflection requests: the services and the descriptors of their messages, for tools such as grpcurl.

The versions v1 and v1alpha have the same messages under two package names, so one function serves both. ksrv's private
descriptor pool (`ksrv/protocol/protobuf.py`) has the descriptors.
"""

from collections.abc import Sequence
from typing import Any

from ksrv.errors import quote
from ksrv.protocol import protobuf

NOT_FOUND = 5  # grpc.StatusCode.NOT_FOUND as the number that this protocol carries
INVALID_ARGUMENT = 3


def answer(request: Any, served: Sequence[str]) -> Any:
    """Answer one ServerReflectionRequest.

    Args:
        served: The full names of the services.

    Returns:
        A ServerReflectionResponse of the same version; an unknown symbol is an `error_response`.
    """
    package = request.DESCRIPTOR.file.package
    made = protobuf.message_class(f"{package}.ServerReflectionResponse")(
        valid_host=request.host, original_request=request
    )
    match request.WhichOneof("message_request"):
        case "list_services":
            for service in served:
                made.list_services_response.service.add(name=service)
        case "file_by_filename":
            _put_files(made, request.file_by_filename, request.file_by_filename)
        case "file_containing_symbol":
            _put_files(
                made, _file_of(request.file_containing_symbol), request.file_containing_symbol
            )
        case "file_containing_extension":
            _put_error(made, NOT_FOUND, "these messages have no extensions")
        case "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            if _is_message(name):
                made.all_extension_numbers_response.base_type_name = name
            else:
                _put_error(made, NOT_FOUND, f"unknown message {quote(name)}")
        case _:
            _put_error(made, INVALID_ARGUMENT, "the request asks for nothing")
    return made


def _file_of(symbol: str) -> str:
    try:
        return str(protobuf.pool().FindFileContainingSymbol(symbol).name)
    except KeyError:
        return ""


def _is_message(name: str) -> bool:
    try:
        protobuf.message_class(name)
    except KeyError:
        return False
    return True


def _put_files(made: Any, name: str, asked: str) -> None:
    files = protobuf.files()
    if name not in files:
        _put_error(made, NOT_FOUND, f"no file describes {quote(asked)}")
        return
    wanted = [name]
    for found in wanted:  # grows by each file's imports, each named once
        wanted.extend(entry for entry in files[found].dependency if entry not in wanted)
    made.file_descriptor_response.file_descriptor_proto.extend(
        files[found].SerializeToString() for found in wanted
    )


def _put_error(made: Any, code: int, text: str) -> None:
    made.error_response.error_code = code
    made.error_response.error_message = text
