"""Types of the C++ core: it is handed descriptors, memory and programs, knows no algorithm, reads no environment."""

# status codes of Comm.run, Op.wait
OK: int  # 0
MISMATCH: int  # 1  ranks called different things
TIMEOUT: int  # 2
PEER_LOST: int  # 3
INTERRUPTED: int  # 4  Ctrl-C: a Python exception is raised by the call itself, others see ABORTED
ABORTED: int  # 5  this communicator was closed or aborted, here or elsewhere
MESSAGE_MISMATCH: int  # 6 point-to-point message does not fit
SYSTEM: int  # 7  the operating system refused something; see Failure.text

def window_bytes(local_size: int, buffer_bytes: int) -> int: ...
def operation_window_bytes(buffer_bytes: int) -> int:
    """Bytes of a window that one operation may use."""

def simd_level() -> str: ...
def reduce_supported(dtype: int, op: int) -> bool: ...
def cma_read(pid: int, address: int, nbytes: int) -> bytes:
    """process_vm_readv, for probing. Raises OSError."""

def address_of(buffer: object, writable: bool) -> tuple[int, int]:
    """Address and bytes of a C-contiguous object with the buffer protocol."""

class Failure:
    kind: int
    ranks: list[int]
    seq: int
    text: str

class Report:
    """What a rank last told about itself: asked for when something fails."""

    rank: int
    heard: bool  # it answered (within the time given to Comm.reports)
    alive: bool  # its connection is open
    left: bool  # it said goodbye (finalised)
    pid: int
    posted: int  # collectives it has started
    done: int  # collectives it has completed
    what: str  # the operation it is in, or the last one, in words
    where: str  # the Python line, if known
    recent: str  # the collectives it began last, a line each: number, space, words

class Engine:
    def __init__(self, max_concurrent: int = 4) -> None:
        """`max_concurrent`: communicators whose asynchronous work advances side by side, by priority."""

    def is_shared(self, ptr: int, nbytes: int) -> bool:
        """Whether all of this memory lies in one segment."""

    def part_from_parent(self) -> None:
        """In a forked child: what is shared with the parent becomes the child's own."""

    def close(self) -> None: ...

class Plan: ...

class Op:
    done: bool  # of a message: after a look for what has come in
    over: bool  # the same, without a look
    status: int
    source: int  # for recv: the rank it came from
    nbytes: int  # for recv: bytes received
    text: str  # why a message failed (MESSAGE_MISMATCH)
    def wait(self, timeout: float) -> int:
        """Status; -1 when `timeout` seconds passed and it is still running (negative timeout: no limit)."""

class Segment:
    """Memory that other ranks can map; has the buffer protocol. Shared until it is released or destroyed."""

    ptr: int
    nbytes: int

    def release(self) -> bool:
        """Take it back from everybody. False if an operation uses it: then nothing happens."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

def allocate(engine: Engine, nbytes: int) -> Segment:
    """New memory, zero. Raises OSError."""

def adopt(engine: Engine, ptr: int, nbytes: int) -> Segment:
    """Share existing memory in place. Raises ValueError where that cannot be, OSError."""

def copy(dst: int, src: int, nbytes: int) -> None:
    """memcpy, without the GIL; past the cache where it is large."""

class Comm:
    def __init__(
        self,
        engine: Engine,
        *,
        uid: int,
        rank: int,
        size: int,
        local: list[int],
        windows: list[int],
        control: list[int],
        coll: list[int],
        p2p: list[int],
        pids: list[int],
        buffer_bytes: int,
        crowded: bool,
        overlap: bool = True,
        priority: int = 0,
        label: str = "",
    ) -> None: ...
    def plan(
        self,
        program: bytes,
        fallback: bytes,
        *,
        operation: int,
        dtype: int,
        op: int,
        root: int,
        count: int,
        n_in: int,
        n_out: int,
        bounds_in: list[int],
        bounds_out: list[int],
        algorithm: int,
        agreed: int,
        tile_bytes: int,
        reaches_input: list[bool] = ...,
        reaches_output: list[bool] = ...,
        through_process: bool = True,
    ) -> Plan:
        """Bind a program to sizes. `agreed`: u64 hash of everything else that ranks must agree on (0 if nothing).

        Raises ValueError for a malformed program.
        """

    def run(self, plan: Plan, in_ptr: int, out_ptr: int, timeout: float) -> int:
        """Blocking, without the GIL; a status code.

        Raises KeyboardInterrupt (and breaks the communicator) on Ctrl-C.
        """

    def call(
        self, operation: int, tensor: object, out: object, op: object, root: object, timeout: float
    ) -> int:
        """`run` of the plan remembered for such a call; -1 if there is none, or its tensors are not ordinary.

        `tensor`: the input, None if this rank has none. `out`: None in place, or without an output. `op`: None
        without an operator. `root`: -1 without one. Reads tensors through DLPack's table of C functions; only plain
        contiguous CPU memory is found.
        """

    def remember(
        self,
        operation: int,
        tensor: object,
        out: object,
        op: str | None,
        root: int,
        plan: Plan,
        inside: int | None = None,
    ) -> None:
        """From now on `call` runs `plan` for calls alike in everything, and in types and shapes of tensors.

        `inside`: bytes into `out` where `tensor` may lie; None: they must not overlap.
        """

    def know(self, tensor: object) -> None:
        """From now on ordinary tensors of this type are seen by `send_tensor` and `recv_tensor`."""

    def send_tensor(self, tensor: object, dst: object, tag: object) -> bool:
        """Copy an ordinary small tensor out at once; False, and nothing done, for what takes the general way."""

    def start_send(self, tensor: object, dst: object, tag: object, timeout: float, where: str) -> Op | None:
        """`send` of an ordinary tensor of any size; None for what takes the general way."""

    def recv_tensor(self, tensor: object, src: object, tag: object, timeout: float) -> bool | Op | None:
        """`recv` into an ordinary tensor, blocking, without the GIL: True, or what failed; None if it is not one."""

    noted_bytes: int
    """From this size on, `call` finds tensors in shared memory only (default: no limit)."""

    def share(self, ptr: int, nbytes: int, timeout: float) -> str:
        """Offer the segment that holds this memory to the local ranks; '' when all have mapped it, or why not."""

    def forget(self) -> None:
        """Forget what was remembered."""

    def start(self, plan: Plan, in_ptr: int, out_ptr: int, timeout: float, where: str) -> Op: ...
    def send(
        self, dst: int, tag: int, ptr: int, nbytes: int, dtype: int, timeout: float, where: str
    ) -> Op: ...
    def recv(self, src: int, tag: int, ptr: int, nbytes: int, dtype: int, timeout: float, where: str) -> Op:
        """src -1: from anyone."""

    def failure(self) -> Failure | None: ...
    def reports(self, what: str, where: str, timeout: float) -> list[Report]:
        """Tell every rank what this one was doing and collect what they were; at most `timeout` seconds."""

    def abort(self, text: str) -> None:
        """Break the communicator on every rank, with this reason."""

    def bytes_sent(self, rank: int) -> int: ...
    def shared_bytes(self) -> int: ...
    def lost(self) -> list[int]:
        """Ranks whose connection has ended."""

    def close(self, exiting: bool = False) -> None:
        """Leave. exiting: the process ends without having been asked to leave; peers are told so."""

QUANTISE_CHUNK: int  # values that share a scale

def quantised_bytes(count: int) -> int:
    """Bytes of the 8-bit form of `count` floats, a multiple of 16."""

def quantise(values: int, dtype: int, count: int, pieces: int, length: int, out: int) -> None:
    """Cut a vector into `pieces` of `length` (the last may be shorter) and write the 8-bit form of each, every
    quantised_bytes(length) bytes from `out` on."""

def dequantise(pieces_at: int, pieces: int, length: int, count: int, dtype: int, values: int) -> None:
    """The reverse: pieces that lie one after the other become one vector."""

def dequantise_sum(
    pieces_at: int, stride: int, pieces: int, weight: float, count: int, dtype: int, values: int
) -> None:
    """The weighted sum, in float32, of `pieces` vectors in 8-bit form, `stride` bytes apart."""

def requantise_sum(
    pieces_at: int,
    stride: int,
    pieces: int,
    own: int,
    weight: float,
    count: int,
    dtype: int,
    values: int,
    room: int,
    out: int,
) -> None:
    """The same sum in 8-bit form, with the exact `values` in place of piece `own`; fills `room` bytes at `out`."""
