"""gpu-[01-08] and back."""

from __future__ import annotations

import pytest

from orchestrator import ranges


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu-[1-3]", "gpu-1 gpu-2 gpu-3"),
        ("gpu-[08-11]", "gpu-08 gpu-09 gpu-10 gpu-11"),
        ("gpu-[1,3,5-7]", "gpu-1 gpu-3 gpu-5 gpu-6 gpu-7"),
        ("r[1-2]-n[1-2].lab", "r1-n1.lab r1-n2.lab r2-n1.lab r2-n2.lab"),
        ("[fe80::1]:22", "[fe80::1]:22"),
    ],
)
def test_expand(pattern: str, names: str) -> None:
    assert ranges.expand(pattern) == tuple(names.split())


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("g[a]", "[a] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[10-08]", "[10-08] is not a range; write [08-10]"),
        ("g[14-1,4-1,7]", "[14-1,4-1,7] is not a range; write [1-14,1-4,7]"),
        ("g[4-01]", "[4-01] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[08-100]", "[08-100] is not a range; write [01-08] or [1,3,5-7]"),
        ("g[1-5000]", "[1-5000] stands for more than 4096 hosts"),
        ("g[1-2", 'has brackets that do not match: "g[1-2"'),
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
        ("gpu-10 gpu-9 gpu-8", "gpu-[8-10]"),
        ("gpu-08 gpu-09 gpu-10 gpu-12", "gpu-[08-10,12]"),
        ("gpu-99 gpu-100 gpu-101", "gpu-[99-101]"),
        ("login gpu-2 gpu-1 nas", "gpu-[1-2],login,nas"),
        ("r1-n1 r1-n2 r2-n1", "r1-n[1-2],r2-n1"),
        ("gpu-1 gpu-01", "gpu-[1,01]"),
    ],
)
def test_fold(names: str, folded: str) -> None:
    assert ranges.fold(names.split()) == folded
    assert set(ranges.expand_all(folded)) == set(names.split())
