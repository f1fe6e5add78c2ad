"""`ksrv doctor`: looks at the machine and the software on it, and reports findings."""
