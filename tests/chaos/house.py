"""A service to be hurt, and what its processes hold while no call is on.

Theory of operation
    The voice is the synthetic one, so a caller knows of every sample which word of which response it is. What the
    Talker hands over is too large for a frame and travels through the arena. The pace gives each phase of a reply room:
    a prompt takes 15 ms a token to read, a word 100 ms to write and 200 ms to say.

    Each process has a base line, taken when no call is on and it has served one. Afterwards it must come back to that
    whenever no call is on: as many descriptors, threads and foreign arenas, and nearly as much memory.

Rules
* `GROWTH_KIB_MAX`: thirty cases add 0.3 MiB to a worker and 1.4 MiB to a gateway that has served one (mostly in its
  second); what a single case loses for good, such as a link's buffer (256 KiB), adds up beyond the bound within a
  service's cases.
* A process that was replaced gets a base line of its own, after it has served its first reply.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.caller import calling, utterance
from tests.live.census import census_of
from tests.live.service import EVENT_S_MAX, Service, serving, shared_memory_of

SPEECH = ("thinker", "talker", "vocoder")  # the way of a reply
STAGES = ("encoder", *SPEECH)
# A pool keeps as many connections to the store as were in use at once; what leaks is soon more, as base lines stay.
CONNECTIONS_KEPT_MAX = 4
GROWTH_KIB_MAX = 2_048
WORDS = 16  # of a whole reply, 3.2 s
SILENCE_S = 1.0

# Of an item of 15 frames, 30,720 bytes: the arena carries what is more than 16,384.
CHANNELS = 512
PROFILE = """
[encoder]
partial_ms = 20
settle_ms = 20
final_ms = 20
[thinker]
concurrency = 1
prefill_ms_per_token = 15
word_ms = {word_ms}
reply_words = {words}
words_per_clause = 3
[talker]
clause_ms = 2
word_ms = 1
channels = {channels}
[vocoder]
first_chunk_ms = 5
chunk_ms = 5
"""

# What is 0 in `/metrics` while no call is on, by the beginning of its name.
GIVEN_BACK = (
    "duplex_calls",
    "duplex_undrained_responses",
    "duplex_credit_in_use_samples",
    "duplex_encoder_credit_out_samples",
    "duplex_pool_streams",
    "duplex_stage_streams",
    "duplex_stage_sessions",
    "duplex_edge_streams",
    "duplex_edge_credit_out",
    "duplex_arena_blocks_used",
    "duplex_arena_blocks_orphaned",
    "duplex_room_waiting",
    "duplex_scheduler_waiting",
    "duplex_scheduler_running",
    "duplex_audit_found_total",
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of one process. `arenas`: files without a name that it has mapped; `anonymous_kib`: what it has allocated."""

    descriptors: int
    threads: int
    arenas: int
    anonymous_kib: int

    def is_within(self, base: Holdings) -> bool:
        return (
            self.descriptors <= base.descriptors + CONNECTIONS_KEPT_MAX
            and self.threads <= base.threads
            and self.arenas <= base.arenas
            and self.anonymous_kib <= base.anonymous_kib + GROWTH_KIB_MAX
        )


def holdings_of(pid: int) -> Holdings:
    held = census_of(pid)
    return Holdings(held.descriptors, held.threads, len(shared_memory_of([pid])), held.anonymous_bytes >> 10)


class House:
    """A warm service with base lines."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._base: dict[int, Holdings] = {}
        self._warm_up()
        self.check_given_back()

    def _warm_up(self) -> None:
        """A spoken turn and its reply, and another one that is cut off, at every replica of a stage that has two."""
        with calling(self.service) as one, calling(self.service) as other:
            for caller in (one, other):
                caller.settle(max_output_tokens=2)
                caller.hear(utterance())
                caller.until("response.drained")
                caller.type_text("Go on.")
                caller.send("response.create")
                caller.until("response.output_audio.delta")
                caller.send("response.cancel")
                caller.until("response.drained")

    def check_given_back(self) -> None:
        """No call is on: all credit, leases, streams and sessions are back, and all memory, descriptors and threads."""
        self.service.wait_for_calls(0)
        self.service.wait_for_metrics(is_all_back)
        self._wait_for_base_lines()

    def _wait_for_base_lines(self) -> None:
        """What is closed after its peer has gone takes a moment: ask until it is."""
        deadline_s = time.monotonic() + EVENT_S_MAX
        while above := self._above_base():
            assert time.monotonic() < deadline_s, f"more is held than before (now, before): {above}"
        self._base |= {pid: holdings_of(pid) for pid in self.service.processes() if pid not in self._base}

    def _above_base(self) -> dict[str, tuple[Holdings, Holdings]]:
        above = {}
        for pid, command in self.service.processes().items():
            held = holdings_of(pid)
            if pid in self._base and not held.is_within(self._base[pid]):
                above[command] = held, self._base[pid]
        return above


def figure_of(name: str, stage: str) -> str:
    """The figure of the stage's lone replica, as it is called in `/metrics`."""
    return f'duplex_{name}{{replica="{stage}",stage="{stage}"}}'


def is_all_back(metrics: dict[str, float]) -> bool:
    """Every worker is there, has answered, and holds nothing; neither does the gateway."""
    up = {name: value for name, value in metrics.items() if name.startswith("duplex_stage_up{")}
    answered = [name.replace("stage_up", "stage_streams") in metrics for name in up]
    held = [name for name, value in metrics.items() if name.partition("{")[0] in GIVEN_BACK and value]
    return all(up.values()) and all(answered) and not held


@contextmanager
def house(
    folder: Path, settings: Mapping[str, str] | None = None, *, words: int = WORDS, word_ms: int = 100
) -> Iterator[House]:
    """Started, warm, and in the end stopped: with it go all processes, sockets and shared memory (`Service.stop`).

    A reply has `words` words, of which each takes `word_ms` to write. `settings`: beside those of every house.
    """
    profile = folder / "profile.toml"
    profile.write_text(PROFILE.format(words=words, word_ms=word_ms, channels=CHANNELS))
    usual = {
        "synthetic_profile": str(profile),
        "instructions": "Talk.",
        "max_output_tokens": str(words + 1),
        "worker_silence_s": str(SILENCE_S),
    }
    with serving(folder / "data", usual | dict(settings or {}), engine="synthetic") as service:
        yield House(service)
