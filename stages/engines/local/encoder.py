"""The encoder stage: hears utterances with Whisper on the CPU.

Theory of operation
    One recogniser serves all utterances of a worker, one step at a time on one engine thread. A session keeps
    nothing here between its turns. The core time for partials is one budget, shared by the open utterances.

Rules
* The model is given by its folder; its revision is the digest of its weights.
* A step is one window of at most 12 s, encoded and decoded once (twice where a loop is suspected). It looks for
  a cancel between passes; the longest pass is the decoding of 11.7 s of dense speech, about 110 ms on a free
  core and twice that on a shared one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from stages.contracts import EncoderOptions, Options, Tag
from stages.engines.local.utterance import PartialBudget, PartialSettings, Recogniser, Utterance
from stages.engines.local.whisper import Whisper
from stages.stream import StageFailure, StageStream


class LoadedRecogniser(Recogniser, Protocol):
    """A recogniser that owns weights."""

    @property
    def revision(self) -> str: ...

    def close(self) -> None: ...


class EncoderModel:
    """`StageModel` of the encoder. Raises `StageFailure("bad_model")` when the folder holds no usable model."""

    def __init__(
        self,
        model_dir: Path,
        partials: PartialSettings = PartialSettings(),  # noqa: B008
        load: Callable[[Path], LoadedRecogniser] = Whisper,
    ) -> None:
        self._partials = partials
        self._budget = PartialBudget(partials.core_share)
        self._recogniser = load(model_dir)

    @property
    def concurrency(self) -> int:
        return 1

    @property
    def revision(self) -> str:
        return self._recogniser.revision

    def open_session(self, session: str) -> None:
        """Nothing is kept for a session."""

    def close_session(self, session: str) -> None:
        """Nothing was kept for a session."""

    def kept_for(self, session: str) -> dict[str, int]:  # noqa: ARG002 - of any session
        """Nothing is kept for a session."""
        return {}

    def open(self, tag: Tag, options: Options) -> StageStream:
        """An utterance of `tag`'s turn. Raises `StageFailure("wrong_options")` for another stage's options."""
        if not isinstance(options, EncoderOptions):
            raise StageFailure("wrong_options", f"{type(options).__name__} for {tag.key} at the encoder")
        return Utterance(self._recogniser, options, self._partials, self._budget)

    def close(self) -> None:
        self._recogniser.close()
