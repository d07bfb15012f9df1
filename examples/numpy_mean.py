"""Mean and standard deviation of numbers that are spread over processes, with NumPy and without torch.

mpiexec -n 2 python examples/numpy_mean.py
"""

import numpy as np

import hcomm

hcomm.init()
mine = np.random.default_rng(seed=hcomm.rank()).normal(loc=5.0, scale=2.0, size=1_000_000)

# one message: count, sum and sum of squares
moments = np.array([mine.size, mine.sum(), np.square(mine).sum()])
hcomm.all_reduce(moments)
count, total, squares = moments
mean = total / count
deviation = np.sqrt(squares / count - mean**2)

if hcomm.rank() == 0:
    print(
        f"{int(count)} numbers on {hcomm.world_size()} processes: mean {mean:.3f}, deviation {deviation:.3f}"
    )
hcomm.finalize()
