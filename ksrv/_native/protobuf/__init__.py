"""The infer request and response as protobuf messages."""
