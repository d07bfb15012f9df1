"""Where a communicator's ranks are, what its links cost, and which algorithms follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from hcomm.codes import OPERATIONS
from hcomm.config import Settings
from hcomm.core import Core
from hcomm.errors import CommunicatorError, InitError
from hcomm.planning.cost import Costs, Scene
from hcomm.planning.planner import Planner
from hcomm.planning.select import MOST_RANKS, Request

if TYPE_CHECKING:
    from hcomm.bootstrap import Contact
    from hcomm.communicator import Communicator
    from hcomm.planning.explain import Explanation


class Costed(Core):
    """The part of a communicator that knows what things cost."""

    _costs = Costs()
    _chooser: Planner
    _cliques: tuple[tuple[int, ...], ...]
    _hosts: Sequence[Contact]
    _settings: Settings

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host: a partition of all ranks, at most as fine as `cliques`."""
        places: dict[object, list[int]] = {}
        first = {rank: members[0] for members in self._cliques for rank in members}
        for rank in range(self._size):
            # Ranks that share memory are on one host, whatever their containers call themselves.
            host = self._hosts[first[rank]]
            places.setdefault((host.boot_id, host.hostname), []).append(rank)
        return tuple(map(tuple, places.values()))

    @property
    def host_names(self) -> tuple[str, ...]:
        """Per rank, the name of its host."""
        return tuple(host.hostname for host in self._hosts)

    @property
    def costs(self) -> Costs:
        """What its links and hosts are taken to cost: assumed, until `measure_costs` was called."""
        return self._costs

    def measure_costs(self, *, fresh: bool = False, times: int = 1) -> Costs:
        """Measure what links and memory cost; from then on algorithms are chosen by it. Collective; up to 100 ms, less
        where results are kept from an earlier run in the user's cache folder.

        Args:
            fresh: measure again.
            times: measure as often, and keep the least: for busy machines.

        Raises:
            CommunicatorError: a rank failed meanwhile.
        """
        self._check()
        return self._measure(fresh, self._timeout, times)

    def _measure(self, fresh: bool, seconds: float, times: int = 1) -> Costs:
        from hcomm.costs import measure

        whole = cast("Communicator", self)
        costs = measure(whole, fresh=fresh, seconds=seconds, times=times)
        if costs.measured:  # otherwise there was no time for anything, and the table is the better guess
            self._use_costs(costs)
        return self._costs

    def _use_costs(self, costs: Costs) -> None:
        self._costs = costs
        world = self._chooser.world
        self._chooser.use_costs(Scene(self.hosts, self._cliques, costs, window_bytes=world.window_bytes))
        # All ranks forget at the same call: a plan that only some had kept would be another algorithm.
        self._plans.clear()
        self._native.forget()

    def settle_costs(self, parent: Costed | None = None) -> None:
        """See to it that algorithms are chosen by measured costs, where they are to be: by those of `parent`, if it
        has any, or by its own. Collective, and part of making a communicator: later calls may be asynchronous on some
        ranks and not on others, so that none of them could stop to measure.

        Raises:
            InitError: a rank failed meanwhile.
        """
        wanted = self._settings.text("MEASURE_COSTS")
        if wanted == "off" or not 1 < self._size <= MOST_RANKS or (wanted == "auto" and len(self.hosts) < 2):
            return
        if parent is not None:
            if parent.costs.measured:
                self._use_costs(parent.costs)
            return
        try:
            self._measure(False, self._settings.seconds("INIT_TIMEOUT"))
        except CommunicatorError as error:
            raise InitError(f"{error}; this was measured for the choice of algorithms") from error

    def explain(
        self, operation: str, nbytes: int, *, dtype: str = "float32", op: str = "sum", root: int = 0
    ) -> Explanation:
        """Which algorithm a call would use, what each is predicted to cost, and why each lost. Communicates nothing.

        Args:
            operation: such as `all_reduce`.
            nbytes: of the whole tensor, or of the big side of gather-like operations.
            dtype: element type.
            op: operator of a reduction.
            root: of a rooted operation.

        Returns:
            The explanation; print it.

        Raises:
            ValueError: there is no such operation or root, or `nbytes` is negative.
            UnknownAlgorithm: an algorithm was asked for by a setting that cannot run here.
        """
        from hcomm.planning.explain import explain

        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation '{operation}'; known: {', '.join(OPERATIONS)}")
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, not {nbytes}")
        self._check_alive()
        world = self._chooser.world
        scene = world.scene
        if scene is None:
            scene = Scene(self.hosts, self._cliques, self._costs, window_bytes=world.window_bytes)
        request = Request(operation, dtype, op, nbytes, self._peer(root, "root"))
        return explain(world, scene, request, self._algorithms.get(operation))
