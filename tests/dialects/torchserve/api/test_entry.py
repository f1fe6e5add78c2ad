"""The entry point of a TorchServe handler: anything callable, as in TorchServe."""

import pytest

SERVICE = """
import functools

class Net:
    pass

class Service:
    def run(self, data, context):
        return None if data is None else [5] * len(data)
    def __call__(self, data, context):
        return self.run(data, context)
"""


@pytest.mark.parametrize(
    "entry",
    [
        "handle = Service().run\n",
        "handle = Service()\n",
        "handle = functools.partial(Service.run, Service())\n",
    ],
)
def test_what_can_be_called_is_an_entry_point(ts_runner, entry):
    ts_runner("import ts\n" + SERVICE + entry)


def test_a_class_called_handle_is_no_entry_point(ts_runner):
    with pytest.raises(Exception, match="Expected only one class"):
        ts_runner("import ts\n" + SERVICE + "class handle:\n    pass\n")
