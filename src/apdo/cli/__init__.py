"""The command line. Each command is a module of the same name with its `COMMAND`.

    entry.py        the entry point: finds the command, and sets the exit status
    declaring.py    what a command consists of: places, options, the words between them
    helping.py      the screens of --help and --help-all
    completing.py   what a shell offers at a place
    configured.py   options that come from configurations (`apdo.options`), with the defaults in force

The parser is Click. It accepts commands that are declared from data, and ours depend on the algorithm and the
environment that the user names. Its completion for bash, zsh and fish uses the same declarations. It has no
dependencies and adds 25 ms to a start. tyro and cyclopts make options from types whose import loads JAX, and take 80
and 140 ms. argparse with shtab writes completions once, for options that are known beforehand.

JAX is imported only by commands that compute, and by the help that shows an algorithm's options. So `--help` and
mistakes in a name answer at once.
"""

from apdo.cli.entry import main as main
