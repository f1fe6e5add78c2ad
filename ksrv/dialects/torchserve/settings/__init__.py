"""The settings of a TorchServe server: config.properties and metrics.yaml."""
