"""The message classes are current and private, and have the clients' wire format."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from ksrv.protocol import protobuf
from tests.support.paths import ROOT


def test_descriptor_set_is_what_the_sources_compile_to(tmp_path):
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.generate(tmp_path / "fresh.binpb")
    fresh = FileDescriptorSet.FromString((tmp_path / "fresh.binpb").read_bytes())
    stored = FileDescriptorSet.FromString(protobuf.DESCRIPTORS.read_bytes())
    assert stored == fresh, "run python protos/generate.py"


def descriptors_of(file):
    stack = list(file.message_types_by_name.values())
    while stack:
        found = stack.pop()
        yield found
        stack.extend(found.nested_types)


@pytest.mark.parametrize("module", ["service_pb2", "model_config_pb2"])
def test_every_field_agrees_with_the_triton_client(module):
    tritonclient = pytest.importorskip("tritonclient.grpc")
    theirs = {
        found.full_name: found for found in descriptors_of(getattr(tritonclient, module).DESCRIPTOR)
    }
    ours = protobuf.pool().FindFileByName(
        "inference.proto" if module == "service_pb2" else "model_config.proto"
    )
    compared = 0
    for message in descriptors_of(ours):
        if message.name == "PropertiesEntry":
            continue  # the Open Inference Protocol's, not Triton's
        other = theirs[message.full_name]
        for field in message.fields:
            if (message.name, field.name) == ("ModelMetadataResponse", "properties"):
                continue
            twin = other.fields_by_number.get(field.number)
            assert twin is not None, field.full_name
            assert (twin.name, twin.type, twin.is_repeated) == (
                field.name,
                field.type,
                field.is_repeated,
            )
            compared += 1
    assert compared > 10


def test_every_call_of_the_triton_client_exists():
    tritonclient = pytest.importorskip("tritonclient.grpc")
    theirs = tritonclient.service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert set(protobuf.methods(protobuf.INFERENCE)) == {method.name for method in theirs.methods}


@pytest.mark.parametrize("turn", range(5))
def test_concurrent_first_calls_share_one_pool(turn):
    spec = importlib.util.find_spec("ksrv.protocol.protobuf")
    fresh = importlib.util.module_from_spec(spec)  # without what it keeps
    spec.loader.exec_module(fresh)
    services = [fresh.HEALTH, fresh.INFERENCE, fresh.REFLECTION, fresh.REFLECTION_ALPHA] * 4
    began = Barrier(len(services))

    def first_call(service):
        began.wait()
        kind, _ = next(iter(fresh.methods(service).values()))
        return kind

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(services)) as threads:
            kinds = list(threads.map(first_call, services))
    finally:
        sys.setswitchinterval(switch)
    assert len({id(kind.DESCRIPTOR.file.pool) for kind in kinds}) == 1
