"""A plugin of pytest's that puts ksrv's stand-in in the place of TorchServe's package."""

from ksrv.dialects import stand_ins
from ksrv.dialects.torchserve.shims import ts

stand_ins.install(ts.TsFinder("the tests of TorchServe's handlers"))
