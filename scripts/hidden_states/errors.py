"""Errors that speak to the person who runs the workflow."""


class UserError(Exception):
    """Something the user can put right.

    The message says what is wrong, where (file, row, chunk, key) and what to do next. The command line
    prints it without a traceback and exits with 1. A fault of our own is any other exception.
    """
