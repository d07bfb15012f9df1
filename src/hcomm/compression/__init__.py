"""Compression of gradients: fewer bytes on the wire for a little precision. See docs/compression.md.

::

    hcomm.set_gradient_compression("uint8")                     # for every GradientBucket from now on
    hcomm.topk_sparsify(gradient, ratio=0.01, name="fc.weight") # one tensor, with error feedback
    hcomm.compression.all_reduce(gradient, "uint8")             # one tensor, once
"""

from hcomm.compression.auto import Choice, choose
from hcomm.compression.exchange import Exchange
from hcomm.compression.schemes import (
    SCHEMES,
    all_reduce,
    gradient_compression,
    make_exchange,
    set_gradient_compression,
)
from hcomm.compression.topk import forget_residual, residual, topk_sparsify

__all__ = [
    "SCHEMES",
    "Choice",
    "Exchange",
    "all_reduce",
    "choose",
    "forget_residual",
    "gradient_compression",
    "make_exchange",
    "residual",
    "set_gradient_compression",
    "topk_sparsify",
]
