"""`ksrv.serve` in notebooks and scripts."""
