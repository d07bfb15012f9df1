"""Programs, run to their end in a clean environment."""

from __future__ import annotations

import subprocess
import sys

from .job import clean_env

#: Followed by the number of processes and the script.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def run_command(
    *command: str, code: int | None = 0, timeout: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `command`; it must end with exit code `code` (None: any) within `timeout` seconds."""
    done = subprocess.run(
        command,
        env=clean_env(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert code is None or done.returncode == code, (
        f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done
