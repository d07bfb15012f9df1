"""The first program: every process contributes one tensor, and everyone gets the sum.

torchrun --standalone --nproc-per-node 2 examples/hello.py
"""

import torch

import hcomm

hcomm.init()
tensor = torch.full((4,), float(hcomm.rank() + 1))
hcomm.all_reduce(tensor)
print(
    f"rank {hcomm.rank()} of {hcomm.world_size()} over {hcomm.get_backend_name()}: {tensor.tolist()}\n",
    end="",
)
hcomm.finalize()
