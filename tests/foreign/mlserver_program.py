"""Asks a server with the messages of MLServer's own dataplane.proto: mlserver_program.py PROTO GRPC WAY MODEL."""

import subprocess
import sys
import tempfile
from pathlib import Path

import grpc

proto, address, way, model = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    made = [f"-I{Path(proto).parent}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *made, proto], check=True)
    sys.path.insert(0, folder)
    import dataplane_pb2 as pb
    import dataplane_pb2_grpc

    stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))


def request():
    made = pb.ModelInferRequest(model_name=model, id="7")
    made.inputs.add(name="input-0", datatype="FP32", shape=[1, 4])
    return made


if way == "metadata":
    told = stub.ModelMetadata(pb.ModelMetadataRequest(name=model))
    assert told.name == model and told.inputs[0].name, told
elif way == "health":
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name=model)).ready
    assert model in [one.name for one in stub.RepositoryIndex(pb.RepositoryIndexRequest()).models]
else:
    asked = request()
    values = [6.8, 2.8, 4.8, 1.4]
    if way == "raw":  # with an empty `contents` beside, as MLServer's own converters leave it
        import struct

        asked.inputs[0].contents.SetInParent()
        asked.raw_input_contents.append(struct.pack("<4f", *values))
    else:
        asked.inputs[0].contents.fp32_contents.extend(values)
    calls = stub.ModelStreamInfer(iter([asked])) if way == "stream" else [stub.ModelInfer(asked)]
    for answer in calls:
        assert answer.outputs[0].name == "output-0", answer
print("all of it works")
