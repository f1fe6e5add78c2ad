"""Metadata of the server and of models, as documents and as messages."""

import json

from ksrv.limits import Limits
from ksrv.model.spec import ModelSpec
from ksrv.protocol import metadata
from tests.support.model_specs import CLASSIFIER


def test_server_metadata_lists_the_extensions():
    found = metadata.server_metadata(("parameters",))
    assert found["name"] == "ksrv"
    assert found["version"]
    assert found["extensions"] == ["parameters"]
    made = metadata.to_message("inference.ServerMetadataResponse", found)
    assert list(made.extensions) == ["parameters"]


def test_model_metadata_describes_accepted_images():
    found = metadata.model_metadata(CLASSIFIER, ["2", "3"], Limits(image_pixels=5))
    assert json.loads(json.dumps(found)) == found
    assert found["versions"] == ["2", "3"]
    assert found["inputs"][0] == {"name": "image", "datatype": "FP32", "shape": [-1, 224, -1, 3]}
    properties = found["properties"]
    assert "BYTES of shape [N]" in properties["image.image.accepts"]
    assert properties["image.image.formats"] == "jpeg,png"
    assert properties["image.image.color"] == "RGB"
    assert properties["image.image.size"] == "224x100:200"
    assert properties["image.image.resize"] == "pillow"
    assert properties["image.image.shorter_side"] == "256"
    assert properties["image.image.scale"] == "255.0"
    assert properties["image.image.mean"] == "0.5,0.5,0.5"
    assert properties["image.image.max_pixels"] == "5"
    made = metadata.to_message("inference.ModelMetadataResponse", found)
    assert dict(made.properties) == properties
    assert [list(tensor.shape) for tensor in made.inputs] == [[-1, 224, -1, 3], [-1]]


def test_unversioned_model_has_metadata():
    found = metadata.model_metadata(ModelSpec("m", inputs=CLASSIFIER.inputs[1:]), [""])
    assert found["versions"] == []
    assert "properties" not in found
