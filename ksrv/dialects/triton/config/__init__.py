"""Reads model repositories of Triton: the keys of `config.pbtxt` become settings of ksrv's models."""
