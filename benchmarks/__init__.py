"""Benchmarks of hcomm: ``python -m benchmarks`` measures, README.md says how and shows what came out.

::

    __main__                     options, exit code
      ├─ sweep                   all_reduce by size: hcomm beside gloo, in interleaved rounds
      ├─ figures                 import, init, memory: the figures with a target of their own
      ├─ tables, plot, results   what comes out
      └─ jobs                    starts the ranks of one launch, leaves nobody behind
           └─ rank               what each of these processes runs: timing, growth, libraries

``python -m benchmarks.kernels`` measures the reduce kernels alone, beside this machine's copy and addition.
"""
