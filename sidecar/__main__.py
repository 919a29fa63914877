"""`python -m sidecar`: the same as `a2a-sidecar`."""

from sidecar.cli import main

if __name__ == "__main__":
    main(prog_name="a2a-sidecar")
