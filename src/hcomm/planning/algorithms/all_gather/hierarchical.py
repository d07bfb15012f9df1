"""all_gather between hosts, then inside them."""

from ...builder import Builder
from ...registry import algorithm
from ...volume import Volume


def _volume(p: Builder) -> Volume:
    lanes, place = min(map(len, p.cliques)), p.local.index(p.rank)
    if place >= lanes:
        return Volume(1, 1 / p.size, moved=2 / p.size)
    held = [len(clique[place::lanes]) for clique in p.cliques]
    between = sum(held) - held[(p.cliques.index(p.local) + 1) % len(held)]
    inside = (len(p.local) - 1) * sum(held) - len(p.local[place + lanes :: lanes])
    return Volume(between + inside, (between + inside) / p.size, moved=2 / p.size)


@algorithm("all_gather", formula=_volume)
def hierarchical(p: Builder) -> None:
    """Rings between ranks of one place on all hosts, then everybody to everybody inside: (h-1)α + (h-1)/h·n/l·β.

    Each block enters a host once. Hosts may be of different size: as many ranks as the smallest one has, the
    lanes, take part between hosts; each carries the blocks of the ranks a multiple of lanes behind it as well.
    """
    lanes, place, hosts = min(map(len, p.cliques)), p.local.index(p.rank), len(p.cliques)
    me = p.cliques.index(p.local)
    p.move(dst=p.out_block(p.rank), src=p.input())
    if place >= lanes:
        p.send(p.local[place % lanes], p.input())
    else:
        held = [clique[place::lanes] for clique in p.cliques]
        for r in held[me][1:]:
            p.recv(r, p.out_block(r))
        for step in range(hosts - 1):
            for r in held[me - step]:
                p.send(p.cliques[(me + 1) % hosts][place], p.out_block(r))
            for r in held[me - step - 1]:
                p.recv(p.cliques[me - 1][place], p.out_block(r))
        for other in p.local:
            for r in (r for host in held for r in host if other not in (p.rank, r)):
                p.send(other, p.out_block(r))
    for lane in (lane for lane in range(lanes) if lane != place):
        for r in (r for clique in p.cliques for r in clique[lane::lanes] if r != p.rank):
            p.recv(p.local[lane], p.out_block(r))
