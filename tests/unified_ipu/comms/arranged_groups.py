"""Groups of threads that sum gradients by an algorithm."""

from __future__ import annotations

import threading

from unified_ipu.plan import CommsSettings


def arranged(make, algorithm):
    """Groups that sum gradients by an algorithm; half of the ranks are on another host."""

    def make_arranged(size, *, timeout_seconds):
        group = make(size, timeout_seconds=timeout_seconds)
        comms = CommsSettings(algorithm=algorithm, timeout_seconds=timeout_seconds)

        def arrange(rank):
            group[rank].arrange(comms, node_rank=2 * rank // size, deterministic=False)

        if size > 1:
            ranks = [threading.Thread(target=arrange, args=(rank,)) for rank in range(size)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
        return group

    return make_arranged
