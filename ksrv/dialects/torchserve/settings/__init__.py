"""The settings of a TorchServe server: config.properties, metrics.yaml, and the defaults of archives."""
