from __future__ import annotations

import numpy as np
import pytest

from pliant.tools.report.job_columns import smallest_type


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ([-1, 127], np.int8),
        ([0, 128], np.int16),
        ([-129, 0], np.int16),
        ([-1, 2**15], np.int32),
        ([-1, 2**31], np.int64),
        ([-1, 64, 2**32], np.int64),
        ([-1, 2**53 + 1, 2**63 - 1], np.int64),
        ([-(2**63), 0], np.int64),
    ],
)
def test_whole_numbers_stay_whole_in_the_smallest_type_that_holds_them(numbers, kind):
    found = smallest_type(np.array(numbers, np.int64))
    assert (found.tolist(), found.dtype) == (numbers, kind)


def test_other_numbers_are_left_as_they_are():
    assert smallest_type(np.array([0.5, 2.0])).tolist() == [0.5, 2.0]
    assert len(smallest_type(np.zeros(0, np.int64))) == 0
