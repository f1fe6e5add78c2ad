"""The examinations of `ksrv doctor`: the machine, and the software on it."""
