"""Errors meant for the person who runs the system: one line, what was given, what to do.

The command line turns them into a single line and exit code 2; anything else is a defect of ours
and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave (file, column, setting) cannot be used; the message says what to do."""


class MissingColumnError(InputError):
    """A file lacks a column that was asked for."""


def nearest(name: str, valid: Iterable[str], *, prefix: str = "") -> str:
    """Returns " Did you mean 'x'?" for the valid name closest to `name`, or "" when none is close.

    prefix: stands before the name in the answer and takes no part in the comparison.
    """
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean '{prefix}{close[0]}'?" if close else ""
