"""What history says was heard on a telephone against what left the carrier's queue, and how soon that falls silent.

Theory of operation
    Calls of `benchmarks.heard_error` over emulated carriers: the synthetic engine speaks coded tones, replies are cut
    at random points by voice, by a key, by a command of a second connection and by hanging up, and what left the queue
    is decoded and compared with the store. A carrier knows to the sample, or the frame, what it has played.

Promises
* Of whom has not hung up, history is no further from the ear than `ERROR_MS_MAX`: at p95 over Twilio, which tells by
  marks alone; always over Asterisk, which counts its queue.
* History is never above what left the queue, beyond what the ear cannot make out (`Finding.ms_unsure`); where the
  caller has hung up and nobody can be asked any more, by no more than a frame.
* A cut that was asked for, by a key or a command, has left the queue after `STOP_MS_P95_MAX` at p95.

Rule
* Where the machine did not keep up, so that the telephone itself was late or a reply ran dry at the carrier, a cut is
  counted and not judged; of so many at most `LATE_SHARE_MAX` may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import line, percentile
from benchmarks.heard_error.judge import Finding
from benchmarks.heard_error.line import WORDS
from benchmarks.heard_error.plan import Transport, plan_calls
from benchmarks.heard_error.report import HEAD, row
from benchmarks.heard_error.run import SEED, measure, oracle_service
from benchmarks.turns import Say

CUTS = 500  # of each carrier
CARRIERS: tuple[Transport, ...] = ("twilio", "asterisk")
ERROR_MS_MAX = {"twilio": 100, "asterisk": 20}
ERROR_SHARE = {"twilio": 0.95, "asterisk": 1.0}
STOP_MS_P95_MAX = {"twilio": 150, "asterisk": 80}
FRAME_MS = 20
LATE_SHARE_MAX = 0.2
ASKED = ("cancel", "clear", "key")


async def phone_heard_error(say: Say, *, cuts: int) -> bool:
    """`cuts` over each carrier; False where a promise was broken."""
    good = True
    with oracle_service(log_level="info") as service:
        for carrier in CARRIERS:
            findings = await measure(say, service, plan_calls(carrier, cuts, SEED))
            judged = [one for one in findings if not one.spoken.late]
            say(f"{carrier}: {len(findings)} cuts, of which {len(findings) - len(judged)} came amid lateness")
            good &= report(say, carrier, judged) and len(judged) >= (1 - LATE_SHARE_MAX) * cuts
    return good


def report(say: Say, carrier: Transport, findings: Sequence[Finding]) -> bool:
    """Rows by deed and by moment, stops, and what broke a promise; whether nothing did."""
    say(HEAD)
    for name, found in _groups(findings):
        say(row(f"{carrier}, {name}", found))
    for name, deeds in (("speech", ("speak",)), ("an explicit cancel", ASKED)):
        say(line(f"{carrier}, {name} to the last old sample", stops(findings, deeds)))
    broken = broken_promises(carrier, findings)
    for told in broken:
        say(f"FAULT {carrier}: {told}")
    return not broken


def _groups(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    cuts = [("all that were cut", stayed(findings))]
    deeds = sorted({one.spoken.cut.deed for one in findings})
    cuts += [(deed, [one for one in findings if one.spoken.cut.deed == deed]) for deed in deeds]
    moments = sorted({one.spoken.cut.moment for one in findings})
    return cuts + [(moment, [one for one in stayed(findings) if one.spoken.cut.moment == moment]) for moment in moments]


def stayed(findings: Sequence[Finding]) -> list[Finding]:
    """Of whom has not hung up."""
    return [one for one in findings if one.spoken.cut.deed != "hang_up"]


def stops(findings: Sequence[Finding], deeds: Sequence[str]) -> list[float]:
    """How long what was being said went on behind each deed, in ms, where there was more to say."""
    amid = [one for one in findings if one.spoken.cut.deed in deeds and len(one.heard) < WORDS]
    return [one.spoken.stop_ms for one in amid if one.spoken.stop_ms is not None]


def unsure_ms(finding: Finding) -> float:
    """By how much history may seem to be above what left the queue."""
    hung_up = finding.spoken.cut.deed == "hang_up"
    return finding.ms_unsure + (FRAME_MS if hung_up else 0)


def broken_promises(carrier: Transport, findings: Sequence[Finding]) -> list[str]:
    """Each in words."""
    told = [f"{', '.join(one.faults)}: {one}" for one in findings if one.faults]
    told += [f"{one.ms_error:.0f} ms were not heard: {one}" for one in findings if one.ms_error > unsure_ms(one)]
    errors = sorted(abs(one.ms_error) for one in stayed(findings))
    worst = percentile(errors, ERROR_SHARE[carrier]) if errors else 0
    if worst > ERROR_MS_MAX[carrier]:
        told.append(f"an error of {worst:.0f} ms where {ERROR_MS_MAX[carrier]} were promised")
    asked = stops(findings, ASKED)
    if asked and percentile(asked, 0.95) > STOP_MS_P95_MAX[carrier]:
        told.append(f"silent after {percentile(asked, 0.95):.0f} ms where {STOP_MS_P95_MAX[carrier]} were promised")
    return told
