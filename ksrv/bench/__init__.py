"""Load generation for `ksrv bench`: requests, loops, what the server used, and the batching search."""
