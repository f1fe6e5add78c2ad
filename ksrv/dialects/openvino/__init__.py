"""OpenVINO Model Server: its config.json, and the version folders that it names."""
