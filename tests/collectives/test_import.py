"""What `import hcomm` costs and touches."""

from __future__ import annotations

import subprocess
import sys

from support.job import clean_env


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_env(), timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_cheap() -> None:
    """The figure to reach is 0.15 s; a busy machine gets 0.5 s. The best of three counts."""
    code = "import time; t = time.perf_counter(); import hcomm; print(time.perf_counter() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.5


def test_importing_loads_neither_torch_nor_numpy() -> None:
    assert python("import sys, hcomm; print([m for m in ('torch', 'numpy') if m in sys.modules])") == "[]"


def test_importing_has_no_side_effect() -> None:
    code = (
        "import os, signal, threading; s = signal.getsignal(signal.SIGINT); e = dict(os.environ)\n"
        "import hcomm\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')))\n"
        "print(signal.getsignal(signal.SIGINT) is s, e == os.environ)"
    )
    assert python(code) == "1 1\nTrue True"


def test_a_world_of_one_needs_no_launcher() -> None:
    code = (
        "import hcomm\n"
        "hcomm.init(); hcomm.barrier()\n"
        "print(hcomm.rank(), hcomm.world_size(), hcomm.local_rank(), hcomm.local_size())\n"
        "hcomm.finalize()"
    )
    assert python(code) == "0 1 0 1"
