"""Promotes the version that `shadow` names: POST /v2/repository/models/{name}/promote.

The version then serves the requests that name no version. The server decides by the evidence of all workers about the
files that are loaded now.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ksrv.errors import InvalidRequest, quote
from ksrv.model.config import ModelSource
from ksrv.protocol.documents import read_document
from ksrv.protocol.openapi import Operation
from ksrv.shadow.shadowing import AGREED, COMPARED, EXAMPLE, MOST_EXAMPLES, digest_of

PROMOTE_PATH = "/v2/repository/models/{name}/promote"


class PromoteRequest(msgspec.Struct):
    """The bound of a promotion.

    Attributes:
        agreement: The least share of the compared requests in which the versions agree.
        requests: The least number of compared requests.
    """

    agreement: Annotated[float, Meta(ge=0.0, le=1.0)]
    requests: Annotated[int, Meta(ge=1)]


PROMOTE = Operation(
    "Promote the version that shadow: names", "repository", dict[str, Any], PromoteRequest
)


def promote(engine: Any, statistics: Any, document: Any, name: str) -> dict[str, Any]:
    """Promote the shadow version of a model, if the evidence reaches a bound.

    Args:
        engine: The `Engine`.
        statistics: The `ServerStatistics`.
        document: The JSON of a `PromoteRequest`.

    Returns:
        Whether the version was promoted, and the reason why not; the numbers of compared and of agreeing
        requests; for each output the same numbers; differences in words.

    Raises:
        KsrvError: The bound is wrong, or the model has no shadow version that serves.
    """
    bound = read_document(document, PromoteRequest)
    live = engine.find(name)
    if live.config.shadow is None:
        raise InvalidRequest(f"the model {quote(name)} has no shadow: in its model.yaml")
    version = str(live.config.shadow.version)
    shadow = engine.find(name, version)
    [counted] = statistics.models(name, live.spec.version)
    found = _found(counted.sampled.evidence, digest_of(live.source, shadow.source))
    names = sorted({subject for outcome, subject in found if outcome in COMPARED})
    outputs = {
        output: [sum(found[outcome, output] for outcome in COMPARED), found[AGREED, output]]
        for output in names
    }
    requests, agreed = outputs.pop("", [0, 0])
    reason = ""
    if requests < bound.requests:
        reason = f"{requests} requests were compared, and {bound.requests} are needed"
    elif agreed < bound.agreement * requests:
        reason = f"the versions agree in {agreed / requests:.6f} of the requests, and {bound.agreement:g} is needed"
    else:
        sources = {each.spec.version: each.source for each in (live, shadow)}
        engine.load(name, adjust=partial(_promoted, sources, version))
    return {
        "promoted": not reason,
        "reason": reason,
        "version": version,
        "before": live.spec.version,
        "requests": requests,
        "agreed": agreed,
        "outputs": outputs,
        "examples": [text for outcome, text in found if outcome == EXAMPLE][:MOST_EXAMPLES],
    }


def _found(evidence: Mapping[str, int], digest: str) -> Counter[tuple[str, str]]:
    """Return the counts about the loaded files, by outcome and subject; see `Shadowing`."""
    found: Counter[tuple[str, str]] = Counter()
    for key, count in evidence.items():
        about, outcome, subject = key.split("\n", 2)
        if about == digest:
            found[outcome, subject] += count
    return found


def _promoted(compared: Mapping[str, ModelSource], version: str, entry: Any) -> Any:
    """Return a model whose default version is the promoted version.

    Args:
        compared: The versions that were compared. Their files are loaded again as they were; the load fails if that is
            not possible.
        entry: The model as it is on disk.
    """
    versions = {}
    for number in sorted(entry.versions, key=lambda number: number == version):
        source = entry.versions[number]  # the last is the default
        config = source.config and replace(source.config, shadow=None)
        again = number in compared
        versions[number] = replace(compared.get(number, source), config=config, again=again)
    return dataclasses.replace(entry, versions=versions)
