"""The compiled core. Sources are in `native/`; each module here has one job and imports no other package of ksrv."""
