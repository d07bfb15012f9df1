"""hcomm for PyTorch: importing it registers the backend `hcomm` of torch.distributed.

::

    import torch.distributed as dist
    import hcomm.torch

    dist.init_process_group("hcomm")
"""

import os

import torch

from hcomm.diagnose import callsite
from hcomm.torch.backend import ProcessGroup, communicator, register
from hcomm.torch.barrier import monitored_barrier
from hcomm.torch.data import ShardedDataset, ShardedSampler
from hcomm.torch.options import Options
from hcomm.torch.schedule import scale_lr, warmup_factor, warmup_schedule
from hcomm.torch.work import Work

__all__ = [
    "Options",
    "ProcessGroup",
    "ShardedDataset",
    "ShardedSampler",
    "Work",
    "communicator",
    "monitored_barrier",
    "scale_lr",
    "warmup_factor",
    "warmup_schedule",
]

callsite.pass_over(os.path.dirname(torch.__file__))
register()
