"""What a Thinker presumes to have been heard of a reply that was interrupted, told by itself: no word more than was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.coded_ear import wholly_heard
from tests.live.coded import transcript
from tests.live.coded_caller import coded_calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 60  # 12 s of speech: no test waits for its end
REPLY = " ".join(f"w{number}" for number in range(WORDS))
LISTEN_MS = 900


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its voice names each word by its place in the reply, whatever it is."""
    settings = {
        "thinker": "scripted",
        "scripted_replies": "|".join([REPLY, "@said"] * 2),  # for each of the tests
        "prepare_replies": "false",  # or more replies would be begun than are told
        "max_output_tokens": str(WORDS),
    }
    with serving(tmp_path_factory.mktemp("presumed"), settings, engine="synthetic") as running:
        yield running


@pytest.mark.parametrize("speaks", [True, False], ids=["by voice", "by command"])
def test_a_reply_to_an_interruption_presumes_nothing_unheard(service: Service, speaks: bool) -> None:
    with coded_calling(service) as caller:
        caller.type_text("Tell me everything.")
        caller.send("response.create")
        cut = caller.until("response.created")["response"]["id"]
        caller.until("response.output_audio.delta")
        caller.listen_for(LISTEN_MS)
        if speaks:
            caller.speak(lambda: "response.done" in caller.types())
        else:
            caller.send("response.cancel")
            caller.until("response.done")
            caller.type_text("What have I heard?")
            caller.send("response.create", response={"output_modalities": ["text"]})
        answer = caller.find(lambda e: e["type"] == "response.done" and e["response"]["id"] != cut)["response"]
        history = transcript(caller.of_type("response.done")[0])
        heard = wholly_heard(caller.words(), cut)
    content = answer["output"][0]["content"][0]
    *presumed, broken_off = (content.get("transcript") or content["text"]).split()
    assert presumed == history, "the prompt is made of the history"
    assert broken_off == "—", "and says that the reply was cut there"
    assert 2 <= len(presumed) < WORDS
    assert presumed == [f"w{number}" for number in heard[: len(presumed)]], "no word that was not heard as a whole"
    assert len(heard) - len(presumed) <= 1
