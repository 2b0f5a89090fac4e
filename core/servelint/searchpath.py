"""The folders that modules and plugins come from: the current folder only where somebody named it.

``python -m``, ``python -c`` and an empty entry of PYTHONPATH put the current folder on the path, which may hold
what a stranger proposes. Nothing is imported here that the interpreter has not loaded already, since that import
could find the stranger's module.
"""

import os
import sys


def without_here(path: list[str]) -> list[str]:
    """Return a search path without the current folder where it is there by itself.

    An entry of PYTHONPATH that names the folder, and one that an installation added, stay.
    """
    try:
        here = os.getcwd()
    except OSError:
        return [p for p in path if p]
    text = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    listed = text.split(os.pathsep) if text else []
    if here in [os.path.abspath(p) for p in listed if p]:
        return [p for p in path if p]
    if path and path[0] == here and not sys.flags.safe_path:
        path = path[1:]
    return [p for p in path if p and not (p == here and "" in listed)]
