"""`ksrv bench`: sends load to a server, measures it, replays records, and searches for batching settings."""
