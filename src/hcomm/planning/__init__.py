"""What shall we do: algorithms as data. Pure Python, no I/O.

program → builder → registry → algorithms/ say how a collective is done; verify proves that it is what
specification says; select and planner pick one.
"""
