"""List scheduling for plain pipelines: the loop of `construct` with everything else left out.

One stage on every device, one route, nothing taken by B. The result is the same to the tick,
three times as fast; the local search lives on it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppopt.schedule.list_scheduling import Decoder, Policy

NEVER = 2**62


def is_plain(decoder: Decoder) -> bool:
    """Whether `schedule` applies."""
    one_each = all(len(mine) == 1 for mine in decoder.hosted)
    return one_each and all(slot.memory[1] <= 0 for slot in decoder.slots)


def schedule(  # noqa: C901, PLR0912, PLR0915  the hot loop of the search, kept in one piece
    decoder: Decoder, policy: Policy
) -> tuple[list[int], list[int], tuple[list[int], ...]] | None:
    """First start, last end and order per device, by device; None where it gets stuck."""
    slots = [decoder.slots[index] for (index,) in decoder.hosted]
    ahead = {slot.stage: device for device, slot in enumerate(slots)}
    after = [ahead.get(slot.stage + 1, -1) for slot in slots]
    back = [ahead.get(slot.stage - 1, -1) for slot in slots]
    total, size = decoder.total, len(slots)
    ticks = decoder.pipeline.ticks
    limit = [NEVER] * size if ticks.limits is None else ticks.limits
    held = list(ticks.static)
    cap = [policy.cap[slot.stage] for slot in slots]
    lead = [
        slot.time[2] * (100 - patience) // 100
        for slot, patience in zip(slots, policy.patience, strict=True)
    ]
    due = [
        slot.time[2] if prompt else least
        for slot, prompt, least in zip(slots, policy.prompt, lead, strict=True)
    ]
    eager, reserve, room_first = policy.forward_first, policy.reserve, policy.room_first
    came_f: list[list[int]] = [[0] * total if slot.stage == 0 else [] for slot in slots]
    came_b: list[list[int]] = [[] for _ in slots]
    did_f, did_b = [0] * size, [0] * size
    did_w = [total if decoder.fused else 0] * size
    busy, begun = [0] * size, [-1] * size
    orders: tuple[list[int], ...] = tuple([] for _ in slots)
    events = [(0, device) for device in range(size)]
    pop, push = heapq.heappop, heapq.heappush
    while events:
        now, d = pop(events)
        if busy[d] > now:
            continue
        slot = slots[d]
        f, b, w = did_f[d], did_b[d], did_w[d]
        next_b = came_b[d][b] if b < len(came_b[d]) else NEVER
        next_f = came_f[d][f] if f < len(came_f[d]) and f - b < cap[d] else NEVER
        roomy = held[d] + slot.memory[0] <= limit[d]
        may_b, may_f = next_b <= now, roomy and next_f <= now
        if w < b and not roomy and next_f != NEVER and room_first[d]:
            kind, number = 2, w
            did_w[d] = w + 1
        elif may_b and not (may_f and eager[d]):
            kind, number = 1, b
            did_b[d] = b + 1
        elif may_f:
            kind, number = 0, f
            did_f[d] = f + 1
        elif w < b:
            if next_f > now:
                coming = next_f if roomy else NEVER
                if next_b == coming == NEVER:
                    if b - w <= reserve[d] and b < total:
                        continue
                elif b - w <= reserve[d] or now + lead[d] > next_b or now + due[d] > coming:
                    continue
            kind, number = 2, w
            did_w[d] = w + 1
        else:
            continue
        end = now + slot.time[kind]
        if begun[d] < 0:
            begun[d] = now
        busy[d] = end
        held[d] += slot.memory[kind]
        orders[d].append(slot.code[kind] + number)
        push(events, (end, d))
        if kind == 0:
            target = after[d]
            if target < 0:
                came_b[d].append(end)
            else:
                came_f[target].append(end + slot.next_lag)
                push(events, (end + slot.next_lag, target))
        elif kind == 1 and back[d] >= 0:
            came_b[back[d]].append(end + slot.back_lag)
            push(events, (end + slot.back_lag, back[d]))
    if any(done != total for done in (*did_b, *did_w)):
        return None
    return begun, busy, orders
