"""hcomm for PyTorch: importing it registers the backend `hcomm` of torch.distributed.

::

    import torch.distributed as dist
    import hcomm.torch

    dist.init_process_group("hcomm")

Besides: gradient buckets, data-parallel models, communication hooks for DistributedDataParallel, sharded data and
learning-rate schedules.
"""

import os

import torch

from hcomm.diagnose import callsite
from hcomm.torch.backend import ProcessGroup, communicator, register
from hcomm.torch.barrier import monitored_barrier
from hcomm.torch.bucket import GradientBucket
from hcomm.torch.data import ShardedDataset, ShardedSampler
from hcomm.torch.hooks import QuantizeState, TopKState, quantize_hook, topk_hook
from hcomm.torch.options import Options
from hcomm.torch.parallel import DataParallel, broadcast_state, sync_gradients
from hcomm.torch.schedule import scale_lr, warmup_factor, warmup_schedule
from hcomm.torch.tuning import BucketSizes, tune_bucket_size
from hcomm.torch.work import Work

__all__ = [
    "BucketSizes",
    "DataParallel",
    "GradientBucket",
    "Options",
    "ProcessGroup",
    "QuantizeState",
    "ShardedDataset",
    "ShardedSampler",
    "TopKState",
    "Work",
    "broadcast_state",
    "communicator",
    "monitored_barrier",
    "quantize_hook",
    "scale_lr",
    "sync_gradients",
    "topk_hook",
    "tune_bucket_size",
    "warmup_factor",
    "warmup_schedule",
]

callsite.pass_over(os.path.dirname(torch.__file__))
register()
