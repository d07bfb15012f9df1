"""Messages between two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hcomm import buffers
from hcomm.buffers import Buffer
from hcomm.codes import DTYPES
from hcomm.core import Core
from hcomm.diagnose.callsite import caller
from hcomm.diagnose.report import Call, describe
from hcomm.work import Work

_LAST_TAG = 2**31 - 1
_ANYONE = -1


class PointToPoint(Core):
    """Messages with tags. They are counted apart from collectives and may be mixed with them freely.

    A message matches a receive with the same tag from the same rank; those with the same tag and ranks keep
    their order.
    """

    def send(self, tensor: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> Work:
        """Start sending `tensor` to rank `dst`.

        `send` never waits for the receiver, at any size, so two ranks may both send first. The tensor may be
        reused after `wait()` on the returned Work. Messages of up to 64 KB inside a host and 32 KB over TCP are
        copied at once, and their Work is complete at once; larger ones are complete when the receiver takes
        them, so `wait()` waits for its `recv`.

        Args:
            tensor: any shape; strided ones are packed now.
            dst: the receiver, a rank of this communicator (also this one).
            tag: 0..2^31-1.
            timeout: seconds that the message may take to be received.

        Raises:
            ValueError: no such rank, or the tag is out of range.
            UnsupportedBuffer: not an array hcomm can serve.
            BrokenCommunicator: the communicator failed before.
        """
        return self._send_now(tensor, dst, tag) if timeout is None else self._send(tensor, dst, tag, timeout)

    def _send_now(self, tensor: Any, dst: int, tag: int) -> Work:
        """`send` with nothing else said. Of a small ordinary tensor this is all: it is copied at once, so that there is
        nothing to keep or to wait for.
        """
        if self._send_tensor(tensor, dst, tag):
            return _SENT
        where = caller()
        op = self._native.start_send(tensor, dst, tag, self._timeout, where)
        if op is None:
            return self._send(tensor, dst, tag, None)
        name = str(tensor.dtype).rpartition(".")[2]
        return self._track(op, _sending(name, tensor.shape, dst, tag, self._timeout, where), tensor, _nothing)

    def _send(self, tensor: Any, dst: int, tag: int, timeout: float | None) -> Work:
        self._check()
        peer = self._peer(dst, "dst")
        _check_tag(tag)
        seconds = self._seconds(timeout)
        buffer = buffers.pack(tensor, writable=False)
        call = _sending(buffer.dtype, buffer.shape, peer, tag, seconds, caller())
        code = DTYPES[buffer.dtype][0]
        if self._tracing:
            self._trace(call.what)
        self._know(buffer)
        op = self._native.send(peer, tag, buffer.address, buffer.nbytes, code, seconds, call.where)
        return self._track(op, call, buffer, _nothing)

    def _know(self, buffer: Buffer) -> None:
        """Let the core look at tensors of this type itself from now on; not if every call is told."""
        if not self._tracing and buffer.family.name == "torch" and buffer.owner is buffer.array:
            self._native.know(buffer.array)

    def recv(
        self,
        tensor: Any,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Receive a message into `tensor`.

        Args:
            tensor: as many elements, of the same type, as the message has.
            src: the sender; None: whoever sends first with this tag (`Work.source` tells who it was).
            tag: 0..2^31-1.
            timeout: seconds.
            async_op: return a Work, whose result is `tensor`.

        Returns:
            `tensor`, or a Work.

        Raises:
            ValueError: no such rank, or the tag is out of range.
            MessageMismatch: the message has another size or element type.
            CollectiveTimeout, PeerLost, BrokenCommunicator: it did not come.
        """
        if timeout is None and not async_op:
            return self._recv_now(tensor, src, tag)
        return self._recv(tensor, src, tag, timeout, async_op)

    def _recv_now(self, tensor: Any, src: int | None, tag: int) -> Any:
        """`recv` with nothing else said."""
        done = self._recv_tensor(tensor, src, tag, self._timeout)
        if done is True:
            return tensor
        if not done or src is None:
            return self._recv(tensor, src, tag, None, False)
        call = self._receiving(buffers.pack(tensor, writable=True), src, tag, self._timeout)
        raise self._fail(done.status, call, done.text)

    def _recv(self, tensor: Any, src: int | None, tag: int, timeout: float | None, async_op: bool) -> Any:
        self._check()
        peer = _ANYONE if src is None else self._peer(src, "src")
        _check_tag(tag)
        seconds = self._seconds(timeout)
        buffer = buffers.pack(tensor, writable=True)
        call = self._receiving(buffer, peer, tag, seconds)
        code = DTYPES[buffer.dtype][0]
        if self._tracing:
            self._trace(call.what)
        self._know(buffer)
        op = self._native.recv(peer, tag, buffer.address, buffer.nbytes, code, seconds, call.where)

        def complete() -> Any:
            buffer.write_back()
            return buffer.owner

        work = self._track(op, call, buffer, complete)
        return work if async_op else work.wait()

    def _receiving(self, buffer: Buffer, peer: int, tag: int, seconds: float) -> Call:
        sender = "any rank" if peer == _ANYONE else f"rank {peer}"
        what = describe("recv", buffer.dtype, buffer.shape, f"from {sender}, tag {tag}")
        peers = tuple(range(self._size)) if peer == _ANYONE else (peer,)
        return Call(what, caller(), seconds, peers, f"recv from {sender}, tag {tag},")

    def recv_async(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> Work:
        """Start a `recv`; the result of the Work is `tensor`, its `source` the sender."""
        work: Work = self.recv(tensor, src, tag, timeout=timeout, async_op=True)
        return work


def _check_tag(tag: int) -> None:
    if not isinstance(tag, int) or not 0 <= tag <= _LAST_TAG:
        raise ValueError(f"tag must be an integer in 0..{_LAST_TAG}, not {tag!r}")


def _sending(dtype: str, shape: Sequence[int], peer: int, tag: int, seconds: float, where: str) -> Call:
    detail = f"to rank {peer}, tag {tag}"
    return Call(partial(describe, "send", dtype, shape, detail), where, seconds, (peer,), f"send {detail},")


def _nothing() -> None:
    return None


#: Every send that was complete at once.
_SENT = Work.finished(Call("send(…)", "", 0.0))
