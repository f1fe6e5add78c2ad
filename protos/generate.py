"""Compiles the .proto sources beside this file into `ksrv/protocol/descriptors.binpb`.

Usage: python protos/generate.py [OUTPUT]

A descriptor set rather than generated modules: the server builds its message classes from it in a
private pool (`ksrv/protocol/protobuf.py`), so that they never collide with the classes of a client library in
the same process. Needs grpcio-tools, which the `test` extra brings.
"""

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
OUTPUT = SOURCES.parent / "ksrv" / "protocol" / "descriptors.binpb"


def generate(output: Path = OUTPUT) -> None:
    """Write the descriptor set of all sources, imports included.

    Args:
        output: The file to write.

    Raises:
        RuntimeError: The compiler refused a source; its message is on stderr.
    """
    names = sorted(path.name for path in SOURCES.glob("*.proto"))
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCES}",
            f"--proto_path={WELL_KNOWN}",
            f"--descriptor_set_out={output}",
            "--include_imports",
            *names,
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc ended with {code} on {', '.join(names)}")


if __name__ == "__main__":
    generate(*(Path(argument) for argument in sys.argv[1:2]))
