"""The command line as a module: `python -m ppopt`."""

from ppopt.cli import main

if __name__ == "__main__":
    main()
