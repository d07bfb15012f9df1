"""hcomm for PyTorch: gradient buckets, data-parallel models, hooks for DistributedDataParallel."""

from hcomm.torch.bucket import GradientBucket
from hcomm.torch.hooks import QuantizeState, TopKState, quantize_hook, topk_hook
from hcomm.torch.parallel import DataParallel, broadcast_state, sync_gradients
from hcomm.torch.tuning import BucketSizes, tune_bucket_size

__all__ = [
    "BucketSizes",
    "DataParallel",
    "GradientBucket",
    "QuantizeState",
    "TopKState",
    "broadcast_state",
    "quantize_hook",
    "sync_gradients",
    "topk_hook",
    "tune_bucket_size",
]
