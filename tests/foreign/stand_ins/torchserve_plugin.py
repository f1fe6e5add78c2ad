"""A plugin of pytest's that puts ksrv's stand-in in the place of TorchServe's package."""

from ksrv.dialects.torchserve.shims import finder, ts

finder.install(ts.TsFinder("the tests of TorchServe's handlers"))
