"""Expressions over labels, and lists of nodes."""

import pytest

from pliant.schemas.node_labels import condition, names_in

LABELS = ({"rack": "a", "nvlink": ""}, {"rack": "b"}, {"nvlink": "4", "zone": "eu west"}, {})


@pytest.mark.parametrize(
    ("text", "holds_of"),
    [
        ("nvlink", [0, 2]),
        ("!nvlink", [1, 3]),
        ("rack=a", [0]),
        ("rack == a", [0]),
        ("nvlink=", [0]),
        ("rack!=a", [1, 2, 3]),
        ("rack in (a, b)", [0, 1]),
        ("rack in (c,a)", [0]),
        ("rack notin (a)", [1, 2, 3]),
        ("rack,nvlink", [0]),
        ("rack&!nvlink", [1]),
        ("rack=b|nvlink", [0, 1, 2]),
        ("!(rack|nvlink)", [3]),
        ("(rack=b|nvlink),!zone", [0, 1]),
        ("zone='eu west'", [2]),
        ('!!"nvlink"', [0, 2]),
    ],
)
def test_an_expression_holds_of_these_labels(text: str, holds_of: list[int]) -> None:
    assert [at for at, labels in enumerate(LABELS) if condition(text)(labels)] == holds_of


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "a,", "a|b,c", "(a", "a)", "rack in a", "rack in ()", "=a", "[a|b]", "a*2", "a>3", "'a",
     "a='", 'a="', 'a="b', "a in ('b)", "!", "(" * 60 + "a" + ")" * 60],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|put parentheses|levels"):
        condition(text)


def test_lists_of_nodes_are_as_in_slurm() -> None:
    assert names_in("login, n[1-3,7],r[01-02]c[9-10]") == [
        *("login", "n1", "n2", "n3", "n7", "r01c9", "r01c10", "r02c9", "r02c10"),
    ]
    for text in ("n[1", "n[a-b]", "a,,b", "n[0-999999999]", "n[2-1]x["):
        with pytest.raises(ValueError, match=r"nodes|expected"):
            names_in(text)
