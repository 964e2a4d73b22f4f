"""What ranks tell one another through the store, and where they listen."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed

from unified_ipu.errors import PeerLostError
from unified_ipu_torch.c10d_board import Board, address_towards

dist: Any = torch.distributed


class GoneStore:
    def __getattr__(self, name):
        def fail(*_):
            raise RuntimeError("Connection reset by peer\nmore")

        return fail


def boards(*addresses, hosts):
    store = dist.HashStore()
    made = [
        Board(store, rank, len(addresses), serves=rank == 0, address=address)
        for rank, address in enumerate(addresses)
    ]
    for board in made:
        board.join()
    for board in made:
        board.learn()
        board._hosts = list(hosts)
    return made


def test_ranks_of_one_host_listen_on_loopback_only():
    for board in boards("10.0.0.1", "10.0.0.1", hosts="aa"):
        assert board.own_address == "127.0.0.1"


def test_ranks_of_several_hosts_listen_where_they_reach_the_store():
    first, second = boards("10.0.0.1", "10.0.0.2", hosts="ab")
    assert (first.own_address, second.own_address) == ("10.0.0.1", "10.0.0.2")


def test_who_sees_the_store_on_loopback_listens_on_the_way_to_another(monkeypatch):
    asked = []

    def towards(host, _):
        asked.append(host)
        return "10.0.0.1"

    monkeypatch.setattr("unified_ipu_torch.c10d_board.address_towards", towards)
    first, _ = boards("127.0.1.1", "10.0.0.2", hosts="ab")
    assert first.own_address == "10.0.0.1"
    assert asked == ["10.0.0.2"]


def test_an_address_that_is_not_known_is_left_to_gloo():
    assert [board.own_address for board in boards("", "", hosts="ab")] == ["", ""]


def test_the_way_to_loopback_is_loopback_and_no_way_is_none(monkeypatch):
    assert address_towards("127.0.0.1", 29500) == "127.0.0.1"

    def fail(*_, **__):
        raise OSError("no such host")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    assert address_towards("nowhere", 29500) == ""


def test_the_first_cause_counts_for_all():
    first, second = boards("", "", hosts="aa")
    second.abort("lost", "rank 1 gave up: no")
    first.abort("timeout", "later")
    for board in (first, second):
        with pytest.raises(PeerLostError, match="rank 1 gave up: no"):
            board.check()


def test_a_store_that_is_gone_is_a_lost_peer():
    board = Board(GoneStore(), 1, 2, serves=False)
    with pytest.raises(PeerLostError, match=r"key-value store.*Connection reset by peer$"):
        board.check()
    board.leave("world")  # nobody is left who could want to know
