"""Speaking, with a store that has taken everything as soon as it is asked."""

from __future__ import annotations

from sessions.effects import Effect, SaveSpeaking
from sessions.run import Run
from sessions.speaking import Speaking


class QuickStore(Speaking):
    def _save(self, run: Run, now_ns: int) -> list[Effect]:
        effects = super()._save(run, now_ns)
        for effect in effects:
            if isinstance(effect, SaveSpeaking):
                self.saved(effect.item, effect.part.number)
        return effects
