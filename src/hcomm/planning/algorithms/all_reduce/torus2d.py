"""all_reduce on a grid."""

from math import isqrt

from ...builder import Builder
from ...registry import algorithm
from ...rings import ring_all_gather, ring_reduce_scatter
from ...volume import Volume


def _shape(p: Builder, grid: str) -> tuple[int, int]:
    """(ranks in a row, rows): as asked for, or local ranks and hosts, or as square as can be."""
    width, _, height = grid.lower().partition("x")
    if grid and not (width.isdecimal() and height.isdecimal() and int(width) * int(height) == p.size):
        p.fail(f"grid={grid} is not X×Y with X·Y = {p.size} ranks; write it as 2x4")
    if grid:
        return int(width), int(height)
    if len({len(clique) for clique in p.cliques}) == 1 < len(p.cliques) < p.size:
        return len(p.local), len(p.cliques)
    rows = next(y for y in range(isqrt(p.size), 0, -1) if p.size % y == 0)
    return p.size // rows, rows


def _volume(p: Builder, grid: str = "") -> Volume:
    x, y = _shape(p, grid)
    return Volume(2 * (x - 1) + 2 * (y - 1), 2 * (p.size - 1) / p.size)


@algorithm("all_reduce", formula=_volume)
def torus2d(p: Builder, *, grid: str = "") -> None:
    """Reduce-scatter along rows, all_reduce along columns, all-gather along rows: [2(X-1)+2(Y-1)]α + 2(p-1)/p·nβ.

    (Mikami et al., arXiv:1811.05233.) `grid` is X×Y, X ranks in a row; ranks fill it host by host.
    """
    x, y = _shape(p, grid)
    order = [r for clique in p.cliques for r in clique]
    row, column = divmod(order.index(p.rank), x)
    along, across = order[row * x : (row + 1) * x], order[column::x]
    pieces = [p.chunk(i, of=x) for i in range(x)]
    parts = [p.chunk(column * y + j, of=p.size) for j in range(y)]
    ring_reduce_scatter(p, along, pieces)
    ring_reduce_scatter(p, across, parts)
    p.finish(parts[row])
    ring_all_gather(p, across, parts)
    ring_all_gather(p, along, pieces)
