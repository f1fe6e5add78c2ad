"""The `ksrv` command."""
