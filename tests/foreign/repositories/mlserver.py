"""MLServer's messages; its tests run MLServer's server in their process."""

from pathlib import Path

from tests.foreign.cases import Case, Places, Repository, Serving
from tests.foreign.made.models import port


def flowers(places: Places, folder: Path) -> list[Path]:
    """Lay out one model."""
    return [port("iris", folder / "models").parent]


MESSAGES = "a program of this tree sends the messages of their file"
SERVING = Serving("flowers", flowers)
PROPERTIES = (
    "such a call fails for some labels: field 6 of ModelMetadataResponse is `properties` in the protocol, texts that ksrv fills for models with labels and "
    "images, and a map of other messages in MLServer's file"
)
STREAMS = (
    "the answers of a stream are ModelInferResponse messages in MLServer's file; Triton's, which ksrv sends, hold one "
    "beside an error"
)


def messages(way: str, fails: str = "") -> Case:
    """Return the case of one kind of call."""
    program = ("{python}", "{root}/mlserver_program.py", "{checkout}/proto/dataplane.proto")
    name = f"proto/dataplane.proto {way}"
    return Case(
        name,
        (*program, "{grpc}", way, "iris"),
        SERVING,
        prints="works",
        changed=MESSAGES,
        fails=fails,
    )


REPOSITORY = Repository(
    "SeldonIO/MLServer",
    "MLServer",
    (
        *(messages(way) for way in ("health", "metadata", "contents", "raw")),
        messages("stream", fails=STREAMS),
    ),
    {
        "`tests`": "run MLServer's own server in their process",
        "`proto/dataplane.proto metadata` of models with labels or images": PROPERTIES,
    },
)
