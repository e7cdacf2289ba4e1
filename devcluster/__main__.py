"""Lets `python -m devcluster` run the command line."""

from devcluster.cli import main

if __name__ == "__main__":
    main()
