"""What a client reports of the ear, beside what the ledger estimates."""

from __future__ import annotations

from media.chunk import AudioChunk
from media.playout import REPORT_NS_MAX, Playout

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
    playout.acknowledge("r", 12, 30 * MS)
    view = playout.view("r", 31 * MS)
    assert (view.heard, view.basis) == (12, "acked")


def test_reports_never_go_back_nor_beyond_what_was_sent() -> None:
    playout = played(100)
    for reported, heard in ((40, 40), (12, 40), (5_000, 100)):
        playout.acknowledge("r", reported, 0)
        assert playout.view("r", 0).heard == heard


def test_a_client_that_stops_reporting_is_estimated_again_from_its_last_report_on() -> None:
    playout = played(5_000)
    playout.acknowledge("r", 30, 0)
    assert playout.view("r", REPORT_NS_MAX).basis == "acked"
    later = playout.view("r", REPORT_NS_MAX + MS)
    assert (later.heard, later.basis) == (2_001, "estimated")
    ahead = played(5_000)
    ahead.acknowledge("r", 4_000, 0)
    assert ahead.view("r", REPORT_NS_MAX + MS).heard == 4_000
