"""`python -m ksrv` is the `ksrv` command."""

from ksrv.cli.main import main

if __name__ == "__main__":
    main(prog_name="ksrv")
