"""How many files the process may have open: each client's connection is one."""

from __future__ import annotations

import resource
from typing import Final

__all__ = ["raise_file_limit"]

#: More is of no use, and some containers' hard limit is a billion.
ENOUGH: Final = 1 << 20


def raise_file_limit() -> int:
    """Raise the soft limit to the hard one, and return what it is now.

    The usual soft limit of 1024 is for programs that call `select`; without this, a thousand
    clients would be all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
