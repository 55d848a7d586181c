"""Who sends which piece to whom: always one source, that has it, and this machine's line is used once."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planning.spread import Plan, plan

HOSTS = ("a", "b", "c", "d", "e")
LACKS = st.dictionaries(st.sampled_from(HOSTS), st.frozensets(st.integers(0, 30)), min_size=1)
PAIRS = st.frozensets(st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)))


def sources(made: Plan, host: str, piece: int) -> list[str]:
    """Everybody who is to give a piece to a host; "" is this machine."""
    peers = [peer for peer, pieces in made.pulls[host].items() for one in pieces if one == piece]
    return peers + [""] * made.sends[host].count(piece)


@given(LACKS, st.frozensets(st.sampled_from(HOSTS)), PAIRS)
def test_each_piece_that_is_missing_has_one_source_that_has_it(
    lacks: Mapping[str, frozenset[int]], serving: frozenset[str], blocked: frozenset[tuple[str, str]]
) -> None:
    made = plan(lacks, serving & lacks.keys(), blocked)
    assert made.sends.keys() == made.pulls.keys() == lacks.keys()
    for host, missing in lacks.items():
        wanted = {*made.sends[host], *(one for pieces in made.pulls[host].values() for one in pieces)}
        assert wanted == missing
        for piece in missing:
            (source,) = sources(made, host, piece)
            if source:
                assert source != host
                assert source in serving
                assert (host, source) not in blocked
                assert piece not in lacks[source] or piece in made.sends[source]


@given(LACKS)
def test_where_all_reach_each_other_each_piece_leaves_once_and_none_that_a_host_has(
    lacks: Mapping[str, frozenset[int]],
) -> None:
    made = plan(lacks, lacks.keys())
    sent = sorted(piece for pieces in made.sends.values() for piece in pieces)
    everywhere = frozenset.intersection(*map(frozenset, lacks.values()))
    assert sent == sorted(everywhere)


@given(st.integers(2, 5), st.integers(0, 60))
def test_hosts_that_lack_all_share_the_work(count: int, pieces: int) -> None:
    hosts = HOSTS[:count]
    made = plan({host: range(pieces) for host in hosts}, hosts)
    shares = [len(made.sends[host]) for host in hosts]
    assert max(shares) - min(shares) <= 1
    given_away = [sum(len(made.pulls[one].get(host, ())) for one in hosts) for host in hosts]
    assert max(given_away) <= -(-pieces // count) * (count - 1)


@given(LACKS, PAIRS)
def test_where_nobody_serves_all_comes_from_here(
    lacks: Mapping[str, frozenset[int]], blocked: frozenset[tuple[str, str]]
) -> None:
    made = plan(lacks, (), blocked)
    assert {host: frozenset(pieces) for host, pieces in made.sends.items()} == dict(lacks)
    assert not any(made.pulls.values())


def test_a_host_that_was_replaced_gets_all_from_the_others() -> None:
    made = plan({"a": (), "b": (), "new": range(10)}, ("a", "b", "new"))
    assert not any(made.sends.values())
    assert {peer: len(pieces) for peer, pieces in made.pulls["new"].items()} == {"a": 5, "b": 5}


def test_who_cannot_be_reached_by_peers_is_sent_to_and_gives_nothing() -> None:
    made = plan({"a": range(4), "b": range(4)}, ("a",))
    assert (made.sends["a"], made.sends["b"]) == ((0, 1, 2, 3), ())
    assert made.pulls["b"] == {"a": (0, 1, 2, 3)}
