"""What a caller who speaks over us may mean: a lexicon of listening, of taking the floor, and of noise taken for words.

Theory of operation
    A transcript is cut into lower-case words. Sounds that are no speech are taken out, as are texts that a recogniser
    makes of noise. Of what is left, the words and phrases of a listener are taken away; what still remains says more.

Rules
* English only. Words of another language are words: they are taken for content, never for a backchannel.
* Words that only join others ("and", "I'm") say no more than a listener does before there is one to be joined: of a hum
  a recogniser makes such words, and a caller who begins with them goes on.
* A phrase goes before its words: "no problem" comes from a listener, though "no" interrupts. The beginning of one at
  the end of a text is taken for it: "I" may become "I see", and says nothing yet if it does not.
* Case, punctuation and hyphens say nothing; only a question mark does, and only beside words that are no backchannel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

# How Whisper writes what is no speech: (coughs), [Music], *laughs*.
_NO_SPEECH = re.compile(r"\([^)]*\)|\[[^\]]*\]|\*[^*]*\*")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> tuple[str, ...]:
    """The words of `text`, lower-case, without punctuation; what stands in brackets is no speech."""
    return tuple(_WORD.findall(_NO_SPEECH.sub(" ", text).replace("’", "'").lower()))


_LISTENER_WORDS = """
    absolutely alright amazing awesome brilliant certainly cool correct definitely exactly excellent fine
    good gotcha great indeed interesting lovely nice ok okay okey perfect really right sure thanks
    totally true understood wonderful wow ya yay yea yeah yep yes yup
"""
_LISTENER_PHRASES = """
    all right | fair enough | go ahead | go on | got it | got you | i know | i see | i understand | makes sense
    my god | my goodness | no kidding | no problem | no way | no worries | of course | sounds good | sounds great
    thank you so much | thank you very much | thank you | that makes sense | that's fine | that's good | that's great
    that's interesting | that's nice | that's right | that's true | very good | very nice | very well
"""
# Hums, laughter and hesitation in any spelling: mm, mhm, mmhmm, hmm, hum, uh, uhhuh, huh, ah, aha, haha, oh, uhm, er.
_HUMS = r"m[mh]+|h+u*m+|u+h+(?:u+h+)?|h+u+h+|(?=h*a)(?=a*h)[ha]+|(?:he){2,}h?|o+h+|u+h*m+|e+r+m*"
# Each of these takes the floor on its own. Longer phrases ("hold on", "excuse me") do as any two words do.
_INTERRUPTION_WORDS = frozenset(
    words(
        """
        actually but cancel enough hello help hey hold how incorrect listen nah never no nope not pardon pause
        quiet shush sorry stop wait what when where which who why wrong
        """
    )
)

# Articles, pronouns, conjunctions, prepositions and auxiliaries.
_JOINING_WORDS = frozenset(
    words(
        """
        a am an and are as at be because been for from had has have he her his i i'd i'll i'm i've if in is it it's its
        me my of on or our she that the their them then there these they they're this those to us was we we're were with
        you you're your
        """
    )
)

_PHRASES = [phrase.split() for phrase in re.split(r"[|\n]", _LISTENER_PHRASES.strip())]
# Phrases come before the words that they begin with, and the longer one first of two that begin alike.
_LISTENER = [*map(" ".join, _PHRASES), *words(_LISTENER_WORDS)]
# At the end of what is known so far a phrase may only have begun.
_BEGINNINGS = {
    " ".join(phrase[:length])
    for phrase in _PHRASES
    for length in range(1, len(phrase))
    if _INTERRUPTION_WORDS.isdisjoint(phrase)
}
_BACKCHANNEL = re.compile(
    rf"(?<!\S)(?:{'|'.join(_LISTENER)}|{_HUMS}|(?:{'|'.join(sorted(_BEGINNINGS, key=len, reverse=True))})$)(?!\S)"
)

# What Whisper makes of noise and silence, for lack of speech in it: endings of the films that it learned from.
_HALLUCINATED = frozenset(
    {
        "bye",
        "bye bye",
        "i'm sorry",
        "please subscribe",
        "so",
        "thank you",
        "thank you for watching",
        "thank you so much",
        "thank you so much for watching",
        "thank you very much",
        "thanks",
        "thanks for watching",
        "the",
        "you",
    }
)

WORDS_MIN = 2  # one word may be a mishearing; two in a row are speech


class Meaning(Enum):
    """`NOTHING`: no words, or none that anybody said. `WORD` is one word of content, `WORDS` are several."""

    NOTHING = "nothing"
    BACKCHANNEL = "backchannel"
    WORD = "word"
    WORDS = "words"
    INTERRUPTION = "interruption"


def meaning(said: Sequence[str], *, is_question: bool = False) -> Meaning:
    """What `said` (as `words` gives them) means, said by somebody who ought to be listening."""
    if not said or " ".join(said) in _HALLUCINATED:
        return Meaning.NOTHING
    content = _BACKCHANNEL.sub("", " ".join(said)).split()
    if not content:
        return Meaning.BACKCHANNEL
    if is_question or not _INTERRUPTION_WORDS.isdisjoint(content):
        return Meaning.INTERRUPTION
    if _JOINING_WORDS.issuperset(content):
        return Meaning.BACKCHANNEL
    return Meaning.WORDS if len(content) >= WORDS_MIN else Meaning.WORD
