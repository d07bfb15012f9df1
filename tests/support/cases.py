"""One case of the big table: which call, on what, and whether every element came out right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from support.arithmetic import Array, difference, operand, reduced, storage
from support.buffers import Buffer, read

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "all_gather", "all_to_all", "gather", "scatter")
ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


@dataclass(frozen=True)
class Case:
    """A row of the table.

    `count` is the elements of the vector (all_reduce, reduce, broadcast), of one rank's contribution (all_gather,
    gather), or of one rank's share (reduce_scatter, scatter, all_to_all). `root` counts from the last rank when
    negative. `form`: blocking, out (result into a given tensor) or async. `algorithm`: forced on a group of everybody.
    """

    operation: str
    dtype: str = "float32"
    op: str | None = None
    count: int = 7
    library: str = "numpy"
    layout: str = "packed"
    root: int = 0
    form: str = "blocking"
    algorithm: str = ""

    def __str__(self) -> str:
        parts = [
            self.operation,
            self.algorithm,
            self.dtype,
            self.op or "",
            str(self.count),
            self.library,
            self.layout,
        ]
        parts += [self.form if self.form != "blocking" else "", f"root{self.root}" if self.root else ""]
        return "-".join(p for p in parts if p)


class Bench:
    """Runs cases on one rank of a job that is up."""

    def __init__(self) -> None:
        import hcomm

        self.hcomm = hcomm
        self.rank = hcomm.rank()
        self.size = hcomm.world_size()
        self._groups: dict[str, Any] = {}

    def _options(self, case: Case) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if case.algorithm:
            if case.algorithm not in self._groups:
                self._groups[case.algorithm] = self.hcomm.new_group(
                    list(range(self.size)), algorithm=case.algorithm
                )
            options["group"] = self._groups[case.algorithm]
        if case.op is not None:
            options["op"] = case.op
        if case.operation in ROOTED:
            options[ROOTED[case.operation]] = case.root % self.size
        return options

    def _call(self, case: Case, *args: Any, **options: Any) -> Any:
        if case.form == "async":
            work = getattr(self.hcomm, f"{case.operation}_async")(*args, **options)
            work.wait()
            assert work.is_completed(), "is_completed() is False after wait()"
            assert work.exception() is None
            return work.result()
        return getattr(self.hcomm, case.operation)(*args, **options)

    def run(self, case: Case) -> str:
        """Empty when right, otherwise what was wrong on this rank. hcomm's exceptions pass through."""
        message: str = getattr(self, f"_{case.operation}")(case, self._options(case))
        return message

    def _parts(self, case: Case, count: int) -> list[Array]:
        # Algorithms made of recv_reduce round 16-bit floats at every hop; they are only used when forced.
        small = case.algorithm in ("ring", "star")
        return [operand(r, case.dtype, case.op, count, small=small) for r in range(self.size)]

    def _buffer(self, case: Case, values: Array) -> Buffer:
        return Buffer(values, case.dtype, case.library, case.layout)

    def _result(self, case: Case, expected: Array, buffer: Buffer | None, returned: Any) -> str:
        """Check what a call returned and, where it had to be that very object, that it was."""
        if buffer is not None:
            if returned is not buffer.tensor:
                return f"returned {type(returned)}, not the tensor it was to fill"
            if buffer.damaged():
                return "memory beside the tensor was written"
        elif case.form != "async" and type(returned).__module__.partition(".")[0] != case.library:
            return f"returned {type(returned)}, expected a {case.library} object"
        return difference(read(returned), expected, case.dtype, case.op)

    def _untouched(self, case: Case, buffer: Buffer, values: Array) -> str:
        if buffer.damaged():
            return "memory beside the input was written"
        wrong = difference(buffer.read(), values, case.dtype, None)
        return f"the input was changed: {wrong}" if wrong else ""

    def _given(self, case: Case, count: int, options: dict[str, Any]) -> Buffer | None:
        """An output to fill, for the forms that take one."""
        if case.form != "out":
            return None
        out = self._buffer(case, np.ones(count, dtype=storage(case.dtype)))
        options["out"] = out.tensor
        return out

    def _all_reduce(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count)
        buffer = self._buffer(case, parts[self.rank])
        returned = self._call(case, buffer.tensor, **options)
        return self._result(case, reduced(parts, case.dtype, case.op or "sum"), buffer, returned)

    def _broadcast(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count)
        buffer = self._buffer(case, parts[self.rank])
        returned = self._call(case, buffer.tensor, **options)
        return self._result(case, parts[options["src"]], buffer, returned)

    def _reduce(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count)
        buffer = self._buffer(case, parts[self.rank])
        returned = self._call(case, buffer.tensor, **options)
        if self.rank != options["dst"]:
            return self._untouched(case, buffer, parts[self.rank])
        return self._result(case, reduced(parts, case.dtype, case.op or "sum"), buffer, returned)

    def _all_gather(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count)
        buffer = self._buffer(case, parts[self.rank])
        out = self._given(case, case.count * self.size, options)
        returned = self._call(case, buffer.tensor, **options)
        wrong = self._result(case, np.concatenate(parts), out, returned)
        return wrong or self._untouched(case, buffer, parts[self.rank])

    def _reduce_scatter(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count * self.size)
        buffer = self._buffer(case, parts[self.rank])
        out = self._given(case, case.count, options)
        returned = self._call(case, buffer.tensor, **options)
        mine = slice(self.rank * case.count, (self.rank + 1) * case.count)
        expected = reduced([p[mine] for p in parts], case.dtype, case.op or "sum")
        return self._result(case, expected, out, returned) or self._untouched(case, buffer, parts[self.rank])

    def _all_to_all(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count * self.size)
        buffer = self._buffer(case, parts[self.rank])
        out = self._given(case, case.count * self.size, options)
        returned = self._call(case, buffer.tensor, **options)
        mine = slice(self.rank * case.count, (self.rank + 1) * case.count)
        wrong = self._result(case, np.concatenate([p[mine] for p in parts]), out, returned)
        return wrong or self._untouched(case, buffer, parts[self.rank])

    def _gather(self, case: Case, options: dict[str, Any]) -> str:
        parts = self._parts(case, case.count)
        buffer = self._buffer(case, parts[self.rank])
        root = self.rank == options["dst"]
        out = self._given(case, case.count * self.size, options) if root else None
        returned = self._call(case, buffer.tensor, **options)
        wrong = self._untouched(case, buffer, parts[self.rank])
        if not root:
            return wrong or ("" if returned is None else f"a rank that is not the root got {type(returned)}")
        return wrong or self._result(case, np.concatenate(parts), out, returned)

    def _scatter(self, case: Case, options: dict[str, Any]) -> str:
        whole = operand(99, case.dtype, None, case.count * self.size)
        root = self.rank == options["src"]
        out = self._given(case, case.count, options)
        given = whole if root else np.zeros_like(whole)
        buffer = self._buffer(case, given) if root or out is None else None
        returned = self._call(case, buffer.tensor if buffer else None, **options)
        expected = whole[self.rank * case.count : (self.rank + 1) * case.count]
        wrong = self._result(case, expected, out, returned)
        return wrong or (self._untouched(case, buffer, given) if buffer else "")
