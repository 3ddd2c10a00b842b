"""`python -m apdo.cli`."""

from apdo.cli.entry import main

if __name__ == "__main__":
    main()
