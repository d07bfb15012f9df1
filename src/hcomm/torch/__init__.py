"""hcomm under torch.distributed: importing it registers the backend `hcomm`.

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
from hcomm.torch.options import Options
from hcomm.torch.work import Work

__all__ = ["Options", "ProcessGroup", "Work", "communicator", "monitored_barrier"]

callsite.pass_over(os.path.dirname(torch.__file__))
register()
