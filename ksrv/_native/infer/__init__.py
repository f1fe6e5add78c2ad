"""The infer request and response of the KServe v2 protocol over REST."""
