"""`ksrv pull`: copies a model from a store into a folder, and checks it. `ksrv serve` itself uses no network."""
