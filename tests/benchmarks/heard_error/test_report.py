"""The report: errors by group, and when a run is good."""

from __future__ import annotations

import numpy as np

from benchmarks.heard_error.report import is_good, report
from tests.benchmarks.heard_error.spoken import WORD, item, judged, speech

ALL = speech(*range(4))
RIGHT = judged(ALL[: 2 * WORD], item(2, 400))
LOW = judged(ALL[: 3 * WORD], item(1, 200))
HIGH = judged(ALL[: 2 * WORD], item(3, 600))


def test_a_run_is_good_where_nothing_is_presumed_of_those_who_report() -> None:
    assert is_good([])
    assert is_good([RIGHT] * 99 + [LOW])
    assert not is_good([RIGHT] * 99 + [HIGH])
    assert not is_good([RIGHT, LOW]), "more than a word in more than five of a hundred"


def test_of_those_who_tell_nothing_only_faults_count() -> None:
    assert is_good([judged(ALL[: 2 * WORD], item(4, 800), reports="none")])
    assert is_good([judged(ALL[: 2 * WORD], item(4, 800), reports="truncates", deed="hang_up")])
    assert not is_good([judged(np.zeros(1, dtype=np.float32), item(0, 0), reports="none", stale_samples=1)])


def test_errors_are_told_by_group_with_their_sign() -> None:
    _, row, *_, faults = report([RIGHT, RIGHT, HIGH])
    assert row.split()[:3] == ["websocket,", "reports,", "prompt"]
    assert row.split()[3:] == ["3", "0", "1", "1", "1", "0", "0", "200", "200"]
    assert faults == "faults: none"
    assert report([judged(speech(0, 0), item(1, 200))])[-1] == "faults: heard twice 1"
