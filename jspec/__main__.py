"""`python -m jspec`: the command line, where no script of it is on the path."""

from jspec.cli.main import main

if __name__ == "__main__":
    main()
