"""The command line: one module for each command, named like it, with its `COMMAND`.

    entry.py        the entry point: which command, and which exit status
    declaring.py    what a command is made of: its places, its options, the words between them
    helping.py      the screens of --help and --help-all
    completing.py   what a shell offers at a place
    configured.py   options that come from configurations (`apdo.options`), with the defaults that are in force

The parser is Click's. It takes commands that are declared from data, and ours depend on the algorithm and the
environment that were named; it completes in bash, zsh and fish, with descriptions, by asking those same declarations;
it depends on nothing and adds 25 ms to a start. tyro and cyclopts make options from type annotations, which have to be
imported first (JAX comes along with them), and take 80 and 140 ms; argparse with shtab writes completions down once,
for options that are known beforehand.

JAX is imported only by commands that compute, and by the help that shows an algorithm's options, so that `--help` and
mistakes in a name answer at once.
"""

from apdo.cli.entry import main as main
