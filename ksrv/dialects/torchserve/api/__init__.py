"""The names that the package `ts` exports to handlers written for TorchServe."""
