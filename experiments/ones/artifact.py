"""What the artifact of ONES publishes of 50 jobs under four schedulers (``out/*.csv``), and what it shows.

Jobs repeat the twenty of ``trace_dev.csv`` in their order: times of the same kind and dataset agree. Waiting
is in seconds, in the order of the jobs.
"""

from __future__ import annotations

from typing import Final

from scipy import stats

MEANS: Final = {
    "ones": (214.0, 127.7, 86.2),
    "drl": (354.0, 208.4, 145.7),
    "tiresias": (501.7, 395.1, 106.6),
    "optimus": (452.9, 260.0, 193.0),
}
"""Completion, execution, waiting time, s."""
WAITED_OPTIMUS: Final = (
    0,
    0,
    0,
    0,
    11,
    19,
    392,
    349,
    353,
    237,
    239,
    167,
    220,
    352,
    20,
    29,
    0,
    187,
    166,
    74,
    75,
    270,
    135,
    417,
    56,
    240,
    241,
    130,
    337,
    413,
    62,
    391,
    230,
    0,
    275,
    308,
    93,
    199,
    413,
    87,
    370,
    288,
    102,
    213,
    226,
    244,
    247,
    251,
    252,
    268,
)
EXECUTED_DRL: Final = (
    78,
    41,
    47,
    33,
    105,
    31,
    62,
    118,
    83,
    211,
    45,
    33,
    38,
    44,
    93,
    52,
    89,
    154,
    638,
    1979,
    81,
    55,
    50,
    39,
    72,
    46,
    70,
    107,
    97,
    362,
    46,
    50,
    63,
    35,
    86,
    64,
    102,
    180,
    1215,
    2346,
    90,
    67,
    64,
    41,
    84,
    54,
    68,
    104,
    94,
    612,
)
WAITED_DRL: Final = (
    101,
    24,
    29,
    0,
    124,
    0,
    85,
    185,
    139,
    242,
    31,
    9,
    32,
    12,
    131,
    41,
    164,
    219,
    499,
    696,
    117,
    47,
    53,
    0,
    126,
    0,
    88,
    195,
    141,
    271,
    61,
    14,
    62,
    19,
    133,
    67,
    177,
    228,
    633,
    913,
    119,
    75,
    80,
    2,
    127,
    21,
    99,
    217,
    162,
    274,
)


JCT_S: Final = 244.97
"""Section 4.2: the average of ONES."""
GAINS: Final = {"drl": 0.269, "tiresias": 0.456, "optimus": 0.417}
"""1 - that / the average of another scheduler."""
_EXECUTION_OF_TIRESIAS: Final = 1 - 0.539
"""Average execution time of ONES / that of Tiresias."""
_SHORT_S: Final = 400.0
_WAITING: Final = {"drl": 1 - 0.313, "tiresias": 1 - 0.191, "optimus": 1 - 0.566}
"""Average queueing time of ONES / that of others."""


def paper_averages() -> dict[str, tuple[float, float]]:
    """Execution and queueing time of each scheduler, s: all that section 4.2 prints together."""
    theirs = {name: JCT_S / (1 - gain) for name, gain in GAINS.items()}
    ratio = _WAITING["tiresias"]
    waiting_s = (
        (JCT_S - _EXECUTION_OF_TIRESIAS * theirs["tiresias"]) / (ratio - _EXECUTION_OF_TIRESIAS) * ratio
    )
    queued = {name: waiting_s / part for name, part in _WAITING.items()}
    others = {name: (theirs[name] - queued[name], queued[name]) for name in theirs}
    return {"ones": (JCT_S - waiting_s, waiting_s), **others}


def rounds_p(round_s: float) -> float:
    """Kolmogorov and Smirnov's test: jobs under Optimus wait evenly in rounds of this many seconds."""
    return float(stats.kstest(WAITED_OPTIMUS, stats.uniform(0, round_s).cdf).pvalue)


def one_way_p(pairs: int) -> float:
    """The smallest p of Wilcoxon's two-sided test of that many pairs, by the usual normal distribution."""
    return float(stats.wilcoxon(range(1, pairs + 1), method="approx").pvalue)


def pauses() -> tuple[float, float]:
    """Slope, and Pearson's correlation, of waiting over execution under DRL, jobs of less than 400 s."""
    short = [each for each in zip(EXECUTED_DRL, WAITED_DRL, strict=True) if each[0] < _SHORT_S]
    found = stats.linregress(*zip(*short, strict=True))
    return float(found.slope), float(found.rvalue)


def length_and_waiting() -> float:
    """Spearman's rank correlation of execution and waiting under DRL."""
    return float(stats.spearmanr(EXECUTED_DRL, WAITED_DRL).statistic)
