"""The commands `ksrv infer` and `ksrv client`."""
