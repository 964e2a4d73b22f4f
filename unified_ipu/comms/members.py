"""Who is in a group made by ``split``."""

from __future__ import annotations

import json
from typing import Any, List


def find_members(asked: List[Any], rank: int) -> List[int]:
    """Ranks of the group that ``rank`` joins, in the group's order; none for the color None.

    Args:
        asked: ``[color, key]`` of every rank.
        rank: Of this process.
    """
    color = asked[rank][0]
    if color is None:
        return []
    same = [peer for peer, (other, _) in enumerate(asked) if _text(other) == _text(color)]
    keys = {peer: peer if asked[peer][1] is None else asked[peer][1] for peer in same}
    return sorted(same, key=lambda peer: (keys[peer], peer))


def _text(color: Any) -> str:
    return json.dumps(color, sort_keys=True)
