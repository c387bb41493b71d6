"""What a client reports of the ear, beside what the ledger estimates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from media.chunk import AudioChunk
from media.heard_estimate import Path
from media.playout import REPORT_NS_MAX, LedgerView, Playout

MS = 1_000_000
RATE = 1_000  # a sample is a millisecond


def played(samples: int) -> Playout:
    """One response of which `samples` went out, at time 0."""
    playout = Playout(RATE, 20, 10_000 * MS)
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(2 * samples), final=True))
    while playout.due(0):
        pass
    return playout


def test_without_reports_heard_is_estimated() -> None:
    view = played(100).view("r", 30 * MS)
    assert (view.heard, view.basis) == (30, "estimated")


def test_a_report_is_believed() -> None:
    playout = played(100)
    playout.acknowledge("r", 12, 10 * MS)
    view = playout.view("r", 31 * MS)
    assert (view.heard, view.basis) == (12, "acked")


def test_a_telephone_s_marks_are_told_as_such() -> None:
    playout = Playout(RATE, 20, 10_000 * MS, "mark")
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(200), final=False))
    playout.due(0)
    playout.acknowledge("r", 12, 10 * MS)
    assert playout.view("r", 11 * MS).basis == "mark"


def test_a_report_puts_the_estimate_right() -> None:
    """What is on its way, or waits at the client, has been estimated as heard."""
    playout = played(100)
    for reported, at_ms in ((12, 30), (29, 45), (44, 60)):
        playout.acknowledge("r", reported, at_ms * MS)
        assert (playout.view("r", at_ms * MS).heard, playout.view("r", at_ms * MS).basis) == (reported, "acked")


def test_reports_that_begin_again_are_believed_again() -> None:
    playout = played(9_000)
    playout.acknowledge("r", 0, 0)
    estimated = playout.view("r", 3_000 * MS)
    assert (estimated.heard, estimated.basis) == (3_000, "estimated")
    playout.acknowledge("r", 2_800, 3_000 * MS)
    assert playout.view("r", 3_000 * MS).heard == 2_800


def test_reports_never_go_back_nor_beyond_what_was_sent() -> None:
    playout = played(100)
    for reported, heard in ((40, 40), (12, 40), (5_000, 100)):
        playout.acknowledge("r", reported, 0)
        assert playout.view("r", 0).heard == playout.reported("r") == heard
    assert playout.reported("another") == 0


def test_a_client_that_stops_reporting_is_estimated_again_from_its_last_report_on() -> None:
    playout = played(5_000)
    playout.acknowledge("r", 30, 0)
    assert playout.view("r", REPORT_NS_MAX).basis == "acked"
    later = playout.view("r", REPORT_NS_MAX + MS)
    assert (later.heard, later.basis) == (2_001, "estimated")
    ahead = played(5_000)
    ahead.acknowledge("r", 4_000, 0)
    assert ahead.view("r", REPORT_NS_MAX + MS).heard == 4_000


def test_a_client_that_stops_reporting_as_its_player_runs_empty_has_heard_it_all_when_that_was_due() -> None:
    playout = played(1_000)
    playout.acknowledge("r", 900, 940 * MS)
    assert playout.view("r", 1_039 * MS) == LedgerView(1_000, 1_000, 900, True, "acked", 99)
    assert playout.view("r", 1_040 * MS) == LedgerView(1_000, 1_000, 1_000, True, "estimated", 0)
    playout.go_by(Path(), 1_050 * MS)
    playout.acknowledge("r", 950, 1_060 * MS)
    assert playout.view("r", 1_060 * MS) == LedgerView(1_000, 1_000, 950, True, "acked", 0), "it says otherwise"
    playout.acknowledge("r", 1_000, 1_080 * MS)
    assert playout.view("r", 2_000 * MS).basis == "acked"


def test_a_client_that_was_ahead_of_its_samples_has_not_heard_what_cannot_have_come() -> None:
    playout = played(1_000)
    playout.go_by(Path(delay_ns_max=300 * MS), 0)
    playout.acknowledge("r", 980, 0)
    assert playout.view("r", 1_299 * MS).heard == 980
    assert playout.view("r", 1_300 * MS).heard == 1_000


def test_a_player_that_stands_still_and_says_so_has_not_heard_the_rest() -> None:
    playout = played(1_000)
    for now_ms in range(500, 5_000, 100):
        playout.acknowledge("r", 500, now_ms * MS)
    assert playout.view("r", 4_999 * MS).heard == 500


def test_amid_a_reply_the_last_report_stands_however_near_to_what_was_sent() -> None:
    playout = Playout(RATE, 20, 10_000 * MS)
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(2 * 100), final=False))
    while playout.due(0):
        pass
    playout.acknowledge("r", 90, 90 * MS)
    assert playout.view("r", 1_000 * MS).heard == 90


STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 500)),
    st.tuples(st.just("pass"), st.sampled_from((1, 15, 200, 2_500))),
    st.tuples(st.just("report"), st.integers(0, 3_000)),
)


@given(st.lists(STEPS, max_size=40), st.sampled_from((20, 160, 5_000)))
def test_no_mix_of_reports_and_estimates_lets_fall_what_is_known(steps: list[tuple[str, int]], lead_ms: int) -> None:
    playout = Playout(RATE, 20, lead_ms * MS)
    playout.open("r")
    now_ns = pushed = reported = seq = 0
    before = LedgerView(0, 0, 0, complete=False)
    for step, amount in steps:
        match step:
            case "push":
                playout.push("r", AudioChunk(seq, RATE, pushed, bytes(2 * amount), final=False))
                pushed, seq = pushed + amount, seq + 1
            case "pass":
                now_ns += amount * MS
            case _:
                playout.acknowledge("r", amount, now_ns)
                reported = max(reported, min(amount, before.sent))
        while playout.due(now_ns):
            pass
        view = playout.view("r", now_ns)
        assert view.generated >= view.sent >= view.heard >= reported
        assert view.generated == pushed
        assert view.sent >= before.sent
        assert view.heard >= before.heard or (before.basis, view.basis) == ("estimated", "acked")
        before = view


def test_what_was_taken_back_was_not_sent_and_is_not_heard() -> None:
    playout = played(100)
    playout.acknowledge("r", 90, 100 * MS)
    playout.cut("r", 100 * MS)
    playout.take_back("r", 80)
    view = playout.view("r", 100 * MS + REPORT_NS_MAX + 1)
    assert (view.sent, view.heard) == (80, 80)
    assert playout.arrived("r", 200 * MS) == (80, 80)
    playout.acknowledge("r", 100, 300 * MS)
    assert playout.view("r", 300 * MS).heard == 80
    playout.take_back("r", 95)
    assert playout.view("r", 300 * MS).sent == 80, "what was taken back stays so"


# ---- a telephone's marks -------------------------------------------------------------------------------------------


def marked(samples: int) -> Playout:
    """The same on a telephone."""
    playout = Playout(RATE, 20, 10_000 * MS, "mark")
    playout.open("r")
    playout.push("r", AudioChunk(0, RATE, 0, bytes(2 * samples), final=True))
    while playout.due(0):
        pass
    return playout


def test_before_the_first_mark_nothing_was_heard() -> None:
    view = marked(500).view("r", 400 * MS)
    assert (view.heard, view.basis) == (0, "mark")


def test_between_marks_no_more_was_heard_though_all_could_have_been() -> None:
    playout = marked(500)
    playout.acknowledge("r", 120, 125 * MS)
    view = playout.view("r", 1_500 * MS)
    assert (view.heard, view.basis) == (120, "mark")


def test_a_mark_that_is_overdue_is_waited_for_no_longer() -> None:
    playout = marked(500)
    playout.acknowledge("r", 120, 125 * MS)
    overdue_ns = 125 * MS + REPORT_NS_MAX
    assert playout.view("r", overdue_ns).heard == 120
    view = playout.view("r", overdue_ns + 1)
    assert (view.heard, view.basis) == (500, "estimated")


def test_what_was_marked_to_its_end_stays_so() -> None:
    playout = marked(500)
    playout.acknowledge("r", 500, 510 * MS)
    view = playout.view("r", 60_000 * MS)
    assert (view.heard, view.basis) == (500, "mark")


def test_of_what_has_not_gone_out_nothing_is_marked() -> None:
    playout = Playout(RATE, 20, 10_000 * MS, "mark")
    playout.open("r")
    assert (playout.view("r", 0).heard, playout.view("r", 0).basis) == (0, "estimated")
