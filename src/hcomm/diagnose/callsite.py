"""Where the user called hcomm."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def caller() -> str:
    """`file.py:line` of the innermost frame outside hcomm; '' if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE):
            return f"{_shorten(name)}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _shorten(path: str) -> str:
    """Relative to the working directory if it lies below it: what people type."""
    try:
        below = os.path.relpath(path)
    except (ValueError, OSError):
        return path
    return path if below.startswith(os.pardir) or path.startswith("<") else below
