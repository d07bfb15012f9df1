"""all_gather between hosts, then inside them."""

from ...builder import Builder
from ...groups import groups_of
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder, groups: str = "") -> Volume:
    hosts = groups_of(p, groups)
    local = next(host for host in hosts if p.rank in host)
    lanes, place = min(map(len, hosts)), local.index(p.rank)
    if place >= lanes:
        return Volume(1, 1 / p.size, moved=2 / p.size)
    held = [len(clique[place::lanes]) for clique in hosts]
    between = sum(held) - held[(hosts.index(local) + 1) % len(held)]
    inside = (len(local) - 1) * sum(held) - len(local[place + lanes :: lanes])
    return Volume(between + inside, (between + inside) / p.size, moved=2 / p.size)


@algorithm("all_gather", formula=_volume)
def hierarchical(p: Builder, *, groups: str = "") -> None:
    """Rings between ranks of one place on all hosts, then everybody to everybody inside: (h-1)α + (h-1)/h·n/l·β.

    Each block enters a host once. Hosts may be of different size: as many ranks as the smallest one has, the
    lanes, take part between hosts; each carries the blocks of the ranks a multiple of lanes behind it as well.
    `groups=0+1/2+3` takes these in place of hosts.
    """
    hosts = groups_of(p, groups)
    local = next(host for host in hosts if p.rank in host)
    lanes, place, me = min(map(len, hosts)), local.index(p.rank), hosts.index(local)
    p.move(dst=p.out_block(p.rank), src=p.input())
    if place >= lanes:
        p.send(local[place % lanes], p.input())
    else:
        held = [clique[place::lanes] for clique in hosts]
        for r in held[me][1:]:
            p.recv(r, p.out_block(r))
        for step in range(len(hosts) - 1):
            for r in held[me - step]:
                p.send(hosts[(me + 1) % len(hosts)][place], p.out_block(r))
            for r in held[me - step - 1]:
                p.recv(hosts[me - 1][place], p.out_block(r))
        for other in local:
            for r in (r for some in held for r in some if other not in (p.rank, r)):
                p.send(other, p.out_block(r))
    for lane in (lane for lane in range(lanes) if lane != place):
        for r in (r for clique in hosts for r in clique[lane::lanes] if r != p.rank):
            p.recv(local[lane], p.out_block(r))
