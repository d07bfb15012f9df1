"""Shows how a launcher's processes found their places, one line per process.

    torchrun --standalone --nproc-per-node 4 examples/init_check.py
    mpiexec -n 4 python examples/init_check.py

Needs neither torch nor NumPy. Run it first on a new cluster or container: `init` proves the mapping (who is
on which host, which local rank, which transport) and says on every rank what contradicts what.
"""

from __future__ import annotations

import sys

import hcomm


def main() -> None:
    hcomm.init()
    line = (
        f"global rank {hcomm.rank()}/{hcomm.world_size()}  node {hcomm.node()}  "
        f"local rank {hcomm.local_rank()}/{hcomm.local_size()}  backend {hcomm.get_backend_name()}\n"
    )
    sys.stdout.write(line)  # one write: lines of several processes do not mix
    sys.stdout.flush()
    hcomm.barrier()
    hcomm.finalize()


if __name__ == "__main__":
    main()
