"""all_reduce inside groups of fast links, and between them."""

from ...builder import Builder
from ...groups import groups_of
from ...registry import algorithm
from ...rings import ring_all_gather, ring_reduce_scatter
from ...volume import Volume


def _volume(p: Builder, groups: str = "", inside: str = "") -> Volume:
    found = groups_of(p, groups)
    members = next(group for group in found if p.rank in group)
    lanes, count = min(map(len, found)), len(found)
    messages = lanes * count
    if members.index(p.rank) < lanes:
        messages = (lanes - 1 + len(members) - 1) * count + 2 * (count - 1)
    return Volume(messages, messages / (lanes * count))


@algorithm("all_reduce", formula=_volume)
def grouped(p: Builder, *, groups: str = "", inside: str = "direct") -> None:
    """Reduce-scatter in groups, rings between them, all-gather in groups: 2n/l·β between g groups of l ranks.

    `groups=0+1+2+3/4+5+6+7`, default the hosts; as many ranks as the smallest has, the lanes, each have a ring across.
    Inside, every rank sends to every other (`direct`) or to the next of its group (`ring`, where all are of one size).
    While one tile is between groups, the next one is added up inside and the one before passed on.
    """
    found = groups_of(p, groups)
    members = next(group for group in found if p.rank in group)
    lanes, place = min(map(len, found)), members.index(p.rank)
    parts = [
        [p.chunk(i * len(found) + g, of=lanes * len(found)) for g in range(len(found))] for i in range(lanes)
    ]
    round_about = inside == "ring" and max(map(len, found)) == lanes
    own, others = parts[place] if place < lanes else [], [r for r in members if r != p.rank]
    with p.tiles(1 << 20, stages=3):
        if round_about:
            for pieces in zip(*parts, strict=True):
                ring_reduce_scatter(p, members, pieces)
        else:
            for lane in (lane for lane in range(lanes) if lane != place):
                for part in parts[lane]:
                    p.send(members[lane], part)
            for other in others:
                for part in own:
                    p.recv_reduce(other, part)
        if own:
            across = [group[place] for group in found]
            ring_reduce_scatter(p, across, own, 1)
            p.finish(own[across.index(p.rank)], 1)
            ring_all_gather(p, across, own, 1)
        if round_about:
            for pieces in zip(*parts, strict=True):
                ring_all_gather(p, members, pieces, 2)
        else:
            for other in others:
                for part in own:
                    p.send(other, part, 2)
            for lane in (lane for lane in range(lanes) if lane != place):
                for part in parts[lane]:
                    p.recv(members[lane], part, 2)
