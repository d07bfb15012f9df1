"""hcomm for PyTorch users."""

from hcomm.torch.data import ShardedDataset, ShardedSampler
from hcomm.torch.schedule import scale_lr, warmup_factor, warmup_schedule

__all__ = ["ShardedDataset", "ShardedSampler", "scale_lr", "warmup_factor", "warmup_schedule"]
