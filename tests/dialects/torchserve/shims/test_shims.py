"""`import ts` and `import torchvision` of a handler, in a process without either package."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

INSTALL = """
from ksrv.dialects import stand_ins
from ksrv.dialects.torchserve.shims import torchvision, ts
assert stand_ins.install(ts.TsFinder("cats"))
assert stand_ins.install(torchvision.TorchvisionFinder("cats"))
"""


def run(code, cwd=ROOT):
    command = [sys.executable, "-c", INSTALL + code]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def test_every_name_of_the_table_is_there_and_imports_no_framework():
    done = run(
        "import sys\n"
        "from importlib import import_module\n"
        "for module in ts.MODULES:\n"
        "    for name in ts.NAMES:\n"
        "        assert getattr(import_module(module), name) is not None\n"
        "import ts\n"
        "assert tuple(map(int, ts.__version__.split('.'))) >= (0, 12, 0)\n"
        "assert not {'torch', 'cv2', 'PIL'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("from ts.utils.util import nobody", "cats wants 'nobody' from ts.utils.util"),
        ("import ts.torch_handler.distributed", "cats wants ts.torch_handler.distributed, which"),
        (
            "import torchvision.models.detection",
            "cats wants torchvision.models, and torchvision is",
        ),
        ("from torchvision import models", "cats wants 'models' from torchvision"),
        ("from torchvision.transforms import RandomCrop", "pip install torchvision"),
        (
            "from torchvision import transforms as t; t.Resize(8, t.InterpolationMode.NEAREST)",
            "resizes bilinearly, not with <InterpolationMode.NEAREST",
        ),
    ],
)
def test_missing_names_say_so(code, text):
    done = run(code)
    assert done.returncode == 1
    assert text in done.stderr


REEXPORTS = """
from ts import version
from ts.handler_utils.utils import Context, create_predict_response, send_intermediate_predict_response
from ts.metrics.caching_metric import CachingMetric
from ts.metrics.metric import MetricTypes, MetricUnit, Units
from ts.metrics.metric_abstract import MetricAbstract
from ts.metrics.metrics_store import Dimension, Metric
from ts.model_loader import MetricsCacheYamlImpl, Service, TsModelLoader, list_classes_from_module
from ts.protocol.otf_message_handler import deprecated
from ts.service import Context, PredictionException, RequestProcessor, get_yaml_config
from ts.torch_handler.base_handler import ONNX_AVAILABLE, PT2_AVAILABLE, PT230_AVAILABLE, load_label_mapping, timed
from ts.torch_handler.image_classifier import map_class_to_label
from ts.torch_handler.request_envelope.json import BaseEnvelope
from ts.torch_handler.text_classifier import BaseHandler, TextHandler, ngrams_iterator
from ts.torch_handler.text_handler import CONTRACTION_MAP, CONTRACTIONS_PATTERN, BaseHandler, get_tokenizer
from ts.torch_handler.vision_handler import BaseHandler
"""


def test_names_that_torchserve_imports_from_itself_are_found_in_each_module():
    done = run(REEXPORTS + "assert TextHandler and version.__version__ == '0.12.0'")
    assert done.returncode == 0, done.stderr


def test_libraries_are_imported_when_a_handler_asks_for_them():
    done = run(
        "import sys\n"
        "import ts.torch_handler.base_handler as base\n"
        "assert 'torch' not in sys.modules\n"
        "from ts.torch_handler.text_classifier import F, logger, os\n"
        "import torch\n"
        "assert F is torch.nn.functional and base.torch is torch and logger.name == 'ts.torch_handler.text_classifier'\n"
    )
    assert done.returncode == 0, done.stderr


def test_torchvision_has_a_version_that_can_be_compared():
    done = run(
        "from torchvision import __version__\n"
        "from packaging.version import parse\n"
        "assert parse(__version__) >= parse('0.20')\n"
    )
    assert done.returncode == 0, done.stderr


def test_folder_called_ts_is_not_taken_for_torchserve(tmp_path):
    (tmp_path / "ts").mkdir()
    done = run("from ts.context import Context", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "code",
    [
        "from ts.torch_handler import base_handler; base_handler.BaseHandler",
        "from ts import context; context.Context",
        "from torchvision import transforms; transforms.Resize",
        "import torchvision; torchvision.transforms.Resize",
    ],
)
def test_modules_are_found_by_their_packages(code):
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_folder_called_torchvision_is_not_taken_for_it(tmp_path):
    (tmp_path / "torchvision").mkdir()
    done = run("from torchvision import models", tmp_path)
    assert "cats wants 'models' from torchvision" in done.stderr


def test_names_of_torchserves_own_tests(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    done = run(
        "from pathlib import Path\n"
        "from ts.torch_handler.base_handler import PROFILER_AVAILABLE, BaseHandler\n"
        "from ts.torch_handler.request_envelope import kserve, kservev2\n"
        "from ts.torch_handler.unit_tests.test_utils.model_dir import copy_files, download_model\n"
        "assert PROFILER_AVAILABLE is True\n"
        "copy_files(Path('.'), Path('.'), {'a.txt': 'b.txt'})\n"
        "download_model(Path('a.txt').resolve().as_uri(), Path('.'))\n"
        "assert Path('b.txt').read_text() == Path('model.pt').read_text() == 'x'\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_deprecated_has_torchserves_arguments():
    done = run(
        "import warnings\n"
        "from ts.utils.util import deprecated\n"
        "plain = deprecated('0.9')(lambda: 1)\n"
        "chosen = deprecated('0.9', replacement='other', klass=FutureWarning)(lambda: 2)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    assert (plain(), chosen()) == (1, 2)\n"
        "assert [one.category for one in caught] == [PendingDeprecationWarning, FutureWarning]\n"
        "assert all('0.9' in str(one.message) for one in caught)\n"
        "assert str(caught[1].message).endswith('use other')\n"
    )
    assert done.returncode == 0, done.stderr
