"""Messages between two ranks."""

from __future__ import annotations

from typing import Any

from hcomm import buffers
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
        reused after `wait()` on the returned Work. Messages of up to 8 KB inside a host and 32 KB over TCP are
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
        self._check()
        peer = self._peer(dst, "dst")
        _check_tag(tag)
        seconds = self._seconds(timeout)
        buffer = buffers.pack(tensor, writable=False)
        what = describe("send", buffer.dtype, buffer.shape, f"to rank {peer}, tag {tag}")
        call = Call(what, caller(), seconds, (peer,), f"send to rank {peer}, tag {tag},")
        code = DTYPES[buffer.dtype][0]
        if self._tracing:
            self._trace(what)
        op = self._native.send(peer, tag, buffer.address, buffer.nbytes, code, seconds, call.where)
        return self._track(op, call, buffer, _nothing)

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
        self._check()
        peer = _ANYONE if src is None else self._peer(src, "src")
        _check_tag(tag)
        seconds = self._seconds(timeout)
        buffer = buffers.pack(tensor, writable=True)
        sender = "any rank" if peer == _ANYONE else f"rank {peer}"
        what = describe("recv", buffer.dtype, buffer.shape, f"from {sender}, tag {tag}")
        peers = tuple(range(self._size)) if peer == _ANYONE else (peer,)
        call = Call(what, caller(), seconds, peers, f"recv from {sender}, tag {tag},")
        code = DTYPES[buffer.dtype][0]
        if self._tracing:
            self._trace(what)
        op = self._native.recv(peer, tag, buffer.address, buffer.nbytes, code, seconds, call.where)

        def complete() -> Any:
            buffer.write_back()
            return buffer.owner

        work = self._track(op, call, buffer, complete)
        return work if async_op else work.wait()

    def recv_async(
        self, tensor: Any, src: int | None = None, tag: int = 0, *, timeout: float | None = None
    ) -> Work:
        """Start a `recv`; the result of the Work is `tensor`, its `source` the sender."""
        work: Work = self.recv(tensor, src, tag, timeout=timeout, async_op=True)
        return work


def _check_tag(tag: int) -> None:
    if not isinstance(tag, int) or not 0 <= tag <= _LAST_TAG:
        raise ValueError(f"tag must be an integer in 0..{_LAST_TAG}, not {tag!r}")


def _nothing() -> None:
    return None
