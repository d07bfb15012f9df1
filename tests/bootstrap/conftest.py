"""The bootstrap floor is tested without the C++ core, in processes of its own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `ranks`, for tests that pytest imports by path
