"""`hcomm bench`: how long operations take, in nccl-tests' columns; also `python -m hcomm.bench`.

::

    __main__                      the command line is hcomm.cli.bench
    worker                        one rank that the command started
      └─ sweep                    all points in their order, on every rank
           ├─ order               what is to be measured
           ├─ definitions         operations, their sizes and bus factors
           ├─ libraries           hcomm and the peers it is held against
           ├─ cases, memory       the buffers of one operation, and one call on them
           ├─ values              what is written into inputs and must come out, without hcomm's arithmetic
           └─ meeting             the barrier before each timed call
    results, text, plot, machine  what comes out
"""
