"""Where the user called hcomm."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Folders whose frames are not the user's: hcomm's, and of libraries that call hcomm for the user.
_passed_over = [_PACKAGE]


def pass_over(folder: str) -> None:
    """From now on frames of files in `folder` are not taken for the user's, unless there is no other."""
    path = os.path.join(folder, "")
    if path not in _passed_over:
        _passed_over.append(path)


def caller() -> str:
    """`file.py:line` of the innermost frame outside hcomm; '' if there is none."""
    frame = sys._getframe(1)
    folders = tuple(_passed_over)
    outside = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(folders):
            outside = frame
            break
        if outside is None and not name.startswith(_PACKAGE):
            outside = frame
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "" if outside is None else f"{_shorten(outside.f_code.co_filename)}:{outside.f_lineno}"


@lru_cache(1024)
def _shorten(path: str) -> str:
    """Relative to the working directory if it lies below it: what people type. Kept, for it is asked at each call."""
    try:
        below = os.path.relpath(path)
    except (ValueError, OSError):
        return path
    return path if below.startswith(os.pardir) or path.startswith("<") else below
