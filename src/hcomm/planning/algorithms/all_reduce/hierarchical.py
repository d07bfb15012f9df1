"""all_reduce inside hosts and between them."""

from ...builder import Builder
from ...registry import algorithm
from ...rings import ring_all_gather, ring_reduce_scatter
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    local, hosts, lanes = len(p.local), len(p.cliques), min(map(len, p.cliques))
    lane = p.local.index(p.rank) < lanes
    shown = 2 * (lanes - lane) / lanes
    moved = shown + (local + 1 + 2) / lanes * lane + 2 * (lanes - lane) / lanes if local > 1 else 0
    messages = 2 * (hosts - 1) * lane
    return Volume(messages, messages / hosts / lanes, 2 * (local > 1), moved)


@algorithm("all_reduce", formula=_volume)
def hierarchical(p: Builder) -> None:
    """Reduce-scatter in shared memory, rings between ranks of one place on all hosts, all-gather in shared memory.

    2(h-1)α + 2(h-1)/h·n/l·β between h hosts of l ranks, each byte on each wire once. Hosts may be of different size:
    as many ranks as the smallest one has, the lanes, take part between hosts. Slot `lane` shows parts of a lane's
    chunk, and slot `lanes` the sum, so no slot is written again while it is read.
    """
    lanes, place = min(map(len, p.cliques)), p.local.index(p.rank)
    lane = place if place < lanes else None
    p.windows(lanes + 1 if max(map(len, p.cliques)) > 1 else 0)
    chunks = [p.chunk(i, of=lanes) for i in range(lanes)]
    if len(p.local) > 1:
        with p.tiles(256 << 10, buffers=2, stages=2):
            if lane is not None:
                own = chunks[lane]
                p.move(
                    dst=own,
                    src=[own if r == p.rank else p.window(lane, like=own, of=r) for r in p.local],
                    stage=1,
                )
            for i in range(lanes):
                if i != lane:
                    p.move(dst=p.window(i, like=chunks[i]), src=chunks[i], stage=0)
            p.meet()
    if lane is not None and len(p.cliques) > 1:
        ring = [clique[lane] for clique in p.cliques]
        parts = [p.chunk(lane * len(ring) + h, of=lanes * len(ring)) for h in range(len(ring))]
        with p.tiles(1 << 20):
            ring_reduce_scatter(p, ring, parts)
            p.finish(parts[ring.index(p.rank)])
            ring_all_gather(p, ring, parts)
    if len(p.local) > 1:
        with p.tiles(256 << 10, buffers=2, stages=2):
            for i in range(lanes):
                if i != lane:
                    p.move(dst=chunks[i], src=p.window(lanes, like=chunks[i], of=p.local[i]), stage=1)
            if lane is not None:
                p.move(dst=p.window(lanes, like=chunks[lane]), src=chunks[lane], stage=0)
            p.meet()
