"""reduce_scatter inside hosts, then between them."""

from ...builder import Builder
from ...groups import groups_of
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder, groups: str = "") -> Volume:
    hosts = groups_of(p, groups)
    local = next(host for host in hosts if p.rank in host)
    lanes, place = min(map(len, hosts)), local.index(p.rank)
    held = sum(len(clique[place::lanes]) for clique in hosts) if place < lanes else 0
    # What it does not hold goes to the lanes, of what it holds all but its own block to hosts and neighbours.
    messages = p.size - held + max(held - 1, 0)
    return Volume(messages, messages / p.size, moved=2 * held / p.size)


@algorithm("reduce_scatter", formula=_volume)
def hierarchical(p: Builder, *, groups: str = "") -> None:
    """Add up inside each host, then between ranks of one place on all hosts: (h-1)α + (h-1)/h·n/l·β between hosts.

    Each block leaves a host once. Hosts may be of different size: as many ranks as the smallest one has, the
    lanes, take part between hosts; each adds up the blocks of the ranks a multiple of lanes behind it as well.
    `groups=0+1/2+3` takes these in place of hosts.
    """
    hosts = groups_of(p, groups)
    local = next(host for host in hosts if p.rank in host)
    lanes, place = min(map(len, hosts)), local.index(p.rank)
    blocks = [[r for host in hosts for r in host[lane::lanes]] for lane in range(lanes)]
    for lane in (lane for lane in range(lanes) if lane != place):
        for r in blocks[lane]:
            p.send(local[lane], p.in_block(r))
    if place >= lanes:
        p.recv(local[place % lanes], p.output())
        return
    total = {r: p.scratch(i, like=p.in_block(r)) for i, r in enumerate(blocks[place])} | {p.rank: p.output()}
    for r in blocks[place]:
        p.move(dst=total[r], src=p.in_block(r))
    for other in (r for r in local if r != p.rank):
        for r in blocks[place]:
            p.recv_reduce(other, total[r])
    for host in (host for host in hosts if host != local):
        for r in host[place::lanes]:
            p.send(host[place], total[r])
    for host in (host for host in hosts if host != local):
        for r in local[place::lanes]:
            p.recv_reduce(host[place], total[r])
    for r in local[place::lanes] if p.size > 1 else ():
        p.finish(total[r])
        if r != p.rank:
            p.send(r, total[r])
