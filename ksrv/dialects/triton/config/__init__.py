"""Model repositories of Triton: `config.pbtxt`, its keys, and ensembles."""
