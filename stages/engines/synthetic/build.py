"""Builds the synthetic engine's stages from their options: the section of a profile that is theirs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stages.engines.synthetic.encoder import Encoder
from stages.engines.synthetic.profile import EncoderProfile, TalkerProfile, ThinkerProfile, VocoderProfile
from stages.engines.synthetic.thinker import Thinker
from stages.engines.synthetic.voice import Talker, Vocoder

# Each raises `msgspec.ValidationError`, which names the option.


def encoder(options: Mapping[str, object]) -> Encoder:
    return Encoder(msgspec.convert(options, EncoderProfile))


def thinker(options: Mapping[str, object]) -> Thinker:
    return Thinker(msgspec.convert(options, ThinkerProfile))


def talker(options: Mapping[str, object]) -> Talker:
    return Talker(msgspec.convert(options, TalkerProfile))


def vocoder(options: Mapping[str, object]) -> Vocoder:
    return Vocoder(msgspec.convert(options, VocoderProfile))
