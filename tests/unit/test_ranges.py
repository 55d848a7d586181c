"""gpu-[01-08] and back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import ranges


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu", "gpu"),
        ("gpu-[1-3]", "gpu-1 gpu-2 gpu-3"),
        ("gpu-[08-11]", "gpu-08 gpu-09 gpu-10 gpu-11"),
        ("gpu-[1,3,5-7]", "gpu-1 gpu-3 gpu-5 gpu-6 gpu-7"),
        ("gpu-[7, 1]", "gpu-7 gpu-1"),
        ("gpu-[000-002]", "gpu-000 gpu-001 gpu-002"),
        ("r[1-2]-n[1-2].lab", "r1-n1.lab r1-n2.lab r2-n1.lab r2-n2.lab"),
        ("[fe80::1]:22", "[fe80::1]:22"),
        ("[fe80::[1-2]]", "[fe80::1] [fe80::2]"),
    ],
)
def test_expand(pattern: str, names: str) -> None:
    assert ranges.expand(pattern) == tuple(names.split())


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("g[a]", "[a] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[٣]", "[٣] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[1234567890]", "[1234567890] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[10-08]", "[10-08] counts down; write [08-10]"),
        ("g[08-100]", "[08-100] pads its two ends differently; write [008-100] or [8-100]"),
        ("g[1-3,2]", "[1-3,2] names 2 twice"),
        ("g[1-5000]", "[1-5000] stands for more than 4096 hosts"),
        ("g[1-99][1-99]", "stands for 9801 hosts; at most 4096 are allowed"),
        ("g[1-2", 'has a [ without a ]: "g[1-2"'),
        ("g1-2]", 'has a ] without a [: "g1-2]"'),
    ],
)
def test_what_cannot_be_expanded(pattern: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        ranges.expand(pattern)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("", ""),
        ("gpu-1", "gpu-1"),
        ("gpu-1 gpu-2", "gpu-[1-2]"),
        ("gpu-10 gpu-9 gpu-8", "gpu-[8-10]"),
        ("gpu-08 gpu-09 gpu-10 gpu-12", "gpu-[08-10,12]"),
        ("gpu-99 gpu-100 gpu-101", "gpu-[99-101]"),
        ("gpu-098 gpu-099 gpu-100", "gpu-[098-100]"),
        ("login gpu-2 gpu-1 nas", "gpu-[1-2],login,nas"),
        ("10.0.0.1 10.0.0.2 10.0.1.1", "10.0.0.[1-2],10.0.1.1"),
        ("r1-n1 r1-n2 r2-n1 r2-n2", "r[1-2]-n[1-2]"),
        ("r1-n1 r1-n2 r2-n1", "r1-n[1-2],r2-n1"),
        ("gpu-1 gpu-01", "gpu-[1,01]"),
        ("worker/0 worker/1 ps/0", "ps/0,worker/[0-1]"),
    ],
)
def test_fold(names: str, folded: str) -> None:
    assert ranges.fold(names.split()) == folded
    assert set(ranges.expand_all(folded)) == set(names.split())


_names = st.lists(
    st.lists(
        st.sampled_from(["a", "b", "-", ".", "0", "1", "09", "10", "99", "100", "12345678901"]), min_size=1
    ).map("".join),
    unique=True,
)


@given(_names, st.randoms())
def test_fold_loses_nothing_and_order_does_not_matter(names: list[str], chance: random.Random) -> None:
    folded = ranges.fold(names)
    expanded = ranges.expand_all(folded)
    assert sorted(expanded) == sorted(names)
    chance.shuffle(names)
    assert ranges.fold(names) == folded


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 4))
def test_a_row_of_hosts_folds_to_one_range(low: int, count: int, width: int) -> None:
    names = [f"gpu-{number:0{width}}" for number in range(low, low + count + 2)]
    if len({len(name) for name in names}) == 1 or width < 2:
        assert ranges.fold(names).count(",") == 0
    assert ranges.expand_all(ranges.fold(names)) == tuple(names)


def test_people_count_so() -> None:
    ordered = "2a,10a,gpu,gpu-1,gpu-2,gpu-10,gpu-10a,gpu-10b2,gpu-10b10,login"
    assert ",".join(sorted(sorted(ordered.split(",")), key=ranges.natural_key)) == ordered
