"""The KServe v2 REST resources: inference, metadata, health, metrics, repository, shared memory."""
