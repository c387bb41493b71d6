"""`duplex-client.js` as another page would use it: tokens, limits, and how it comes back."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser.fake_service import FakeService
from tests.browser.steps import HOLD_ANSWERS

pytestmark = [pytest.mark.live, pytest.mark.slow]

# A page of its own over the client. `random` is the smallest there is, so that pauses are half their ceilings.
BEGIN = """
async (options) => {
  const { DuplexClient } = await import("/web/duplex-client.js");
  window.track = (await navigator.mediaDevices.getUserMedia({ audio: true })).getAudioTracks()[0];
  window.states = [];
  window.heard = [];
  window.client = new DuplexClient({ random: () => 0, ...options });
  window.sound = new Audio();
  client.addEventListener("track", ({ detail }) => { sound.srcObject = detail.stream; sound.play(); });
  client.addEventListener("state", ({ detail }) => states.push(detail));
  client.addEventListener("event", ({ detail }) => heard.push(detail.type));
  await client.connect(track);
}
"""
TRIES_MAX = 8


def until_heard(page: Page, kind: str, number: int = 1) -> None:
    """Wait until the page has been told `number` events of this type."""
    page.wait_for_function(f"() => heard.filter((one) => one === '{kind}').length >= {number}")


def test_pauses_grow_and_tries_are_bounded(page: Page, service: FakeService) -> None:
    page.clock.install()
    page.evaluate(BEGIN, {})
    service.refusal = (500, "internal_error", None)
    service.call().drop()
    for attempt in range(1, TRIES_MAX + 1):
        page.wait_for_function(f"() => states.some((one) => one.attempt === {attempt})")
        page.clock.fast_forward(10_000)
    page.wait_for_function("() => client.state === 'closed'")
    pauses = page.evaluate("states.filter((one) => one.attempt).map((one) => one.retryInMs)")
    assert pauses == [200, 400, 800, 1_600, 3_200, 4_000, 4_000, 4_000]
    assert page.evaluate("[states.at(-1).error.code, client.isResumable]") == ["connection_lost", True]


def test_a_call_that_was_given_up_can_still_be_resumed(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (403, "origin_not_allowed", None)
    service.call().drop()
    page.wait_for_function("() => client.state === 'closed'")
    service.refusal = None
    page.evaluate("() => { client.connect(track); }")
    assert service.call(2).next("session.resume")["token"] == "sess.1"
    assert [one["query"] for one in service.requests] == ["extensions=1", *["extensions=1&resume=sess"] * 2]


def test_a_service_that_hangs_is_noticed_by_its_silence(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    call.begin_reply("resp_1", "Hello.")
    call.next("playback.ack")
    call.tone.frozen = True
    assert service.call(2).next("session.resume")["token"] == "sess.1"


def test_the_service_is_left_alone_for_as_long_as_it_asks(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (503, "service_not_ready", 7)
    service.call().drop()
    page.wait_for_function("() => states.some((one) => one.attempt === 2)")
    assert page.evaluate("states.at(-1).retryInMs") == 7_000
    service.refusal = None
    page.evaluate("client.retryNow()")
    service.call(2).next("session.resume")


def test_hanging_up_ends_a_reconnection(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (503, "service_not_ready", 60)
    service.call().drop()
    page.wait_for_function("() => states.some((one) => one.attempt === 2)")
    page.evaluate("client.hangUp()")
    assert page.evaluate("[client.state, states.at(-1).error, client.isResumable]") == ["closed", None, False]


def test_a_call_that_is_ended_before_its_answer_frees_its_line(page: Page, service: FakeService) -> None:
    page.evaluate(HOLD_ANSWERS)
    page.evaluate(f"(options) => {{ window.ended = ({BEGIN})(options).catch(() => {{}}); }}", {})
    page.wait_for_function("() => window.isAnswered")
    page.evaluate("client.hangUp()")
    page.evaluate("letAnswer()")
    call = service.call()
    call.wait(lambda: call.hung_up, "the goodbye")
    page.evaluate("ended")
    assert page.evaluate("states.map((one) => one.state)") == ["connecting", "closed"]


def test_a_call_that_takes_too_long_frees_its_line(page: Page, service: FakeService) -> None:
    page.clock.install()
    page.evaluate(HOLD_ANSWERS)
    page.evaluate(f"(options) => {{ ({BEGIN})(options).catch(() => {{}}); }}", {})
    page.wait_for_function("() => window.isAnswered")
    page.clock.fast_forward(15_000)
    page.wait_for_function("() => client.state === 'closed'")
    assert page.evaluate("states.at(-1).error.code") == "setup_timeout"
    page.evaluate("letAnswer()")
    call = service.call()
    call.wait(lambda: call.hung_up, "the goodbye")


def test_a_fixed_secret_is_good_for_one_connection(page: Page, service: FakeService) -> None:
    service.token = "ek_once"
    page.evaluate(BEGIN, {"token": "ek_once"})
    service.token = "ek_another"
    service.call().drop()
    page.wait_for_function("() => client.state === 'closed'")
    assert page.evaluate("[states.at(-1).error.code, client.isResumable]") == ["token_spent", True]
    service.token = "ek_once"
    page.evaluate("() => { client.connect(track); }")
    assert service.call(2).next("session.resume")["token"] == "sess.1"


def test_a_wrong_token_at_first_is_said_to_be_wrong(page: Page, service: FakeService) -> None:
    service.token = "right"
    code = page.evaluate(f"(options) => ({BEGIN})(options).catch((error) => error.code)", {"token": "wrong"})
    assert code == "invalid_token"


# ---- what waits for a connection -------------------------------------------------------------------


def created(page: Page, service: FakeService, number: int) -> list[str]:
    """The items that came over a connection, up to the reply that was asked for."""
    call = service.call(number)
    call.next("response.create")
    return [one["item"]["id"] for one in call.received if one["type"] == "conversation.item.create"]


def test_what_was_typed_before_the_connection_is_sent_on_it(page: Page, service: FakeService) -> None:
    page.evaluate(HOLD_ANSWERS)
    page.evaluate(f"(options) => {{ window.begun = ({BEGIN})(options); }}", {})
    page.wait_for_function("() => window.isAnswered")
    ids = page.evaluate("[client.sendText('One.'), client.sendText('Two.')]")
    page.evaluate("letAnswer()")
    assert created(page, service, 1) == ids
    page.evaluate("begun")
    assert service.call().types().count("response.create") == 1
    assert len({*ids}) == 2
    assert all(len(one) <= 32 for one in ids)


def test_what_a_dying_connection_lost_is_sent_on_the_next(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    kept = page.evaluate("client.sendText('This arrived.')")
    call.begin_reply("resp_1", "Yes")
    call.end_reply("resp_1", "Yes")
    until_heard(page, "response.drained")
    call.deaf = True
    lost = page.evaluate("client.sendText('This did not.')")
    call.next("response.create", 2)
    call.drop()
    again = service.call(2)
    again.next("session.resume")
    again.resume({"id": kept, "role": "user"}, {"id": "item_resp_1", "role": "assistant"})
    assert created(page, service, 2) == [lost]


def test_what_arrived_unconfirmed_is_answered_and_not_repeated(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    call.deaf = True
    item = page.evaluate("client.sendText('Are you there?')")
    call.next("response.create")
    call.drop()
    again = service.call(2)
    again.next("session.resume")
    again.resume({"id": item, "role": "user"})
    assert created(page, service, 2) == []


def test_settings_that_a_dying_connection_lost_are_sent_on_the_next(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {"session": {"instructions": "Be brief.", "model": "a"}})
    call = service.call()
    page.evaluate("() => { client.updateSession({ instructions: 'Be long.' }); }")
    call.next("session.update", 2)
    until_heard(page, "session.updated", 2)
    call.drop()
    second = service.call(2)
    second.next("session.resume")
    page.evaluate("() => { client.updateSession({ instructions: 'Be kind.' }); }")
    assert second.types() == ["session.resume"]
    second.deaf = True
    second.resume()
    told = {"type": "realtime", "instructions": "Be kind.", "model": "a"}
    assert second.next("session.update")["session"] == told
    second.drop()
    third = service.call(3)
    third.next("session.resume")
    third.resume()
    assert third.next("session.update")["session"] == told


def test_a_refused_message_is_not_tried_again(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    call.deaf = True
    item = page.evaluate("client.sendText('No.')")
    call.next("response.create")
    call.say("error", error={"code": "string_above_max_length", "message": "no", "event_id": item})
    until_heard(page, "error")
    assert page.evaluate("client.takeUnsent()") == []


def test_what_was_not_sent_is_given_back(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    call = service.call()
    call.deaf = True
    item = page.evaluate("client.sendText('Wait for me.')")
    call.next("response.create")
    page.evaluate("client.hangUp()")
    assert page.evaluate("client.takeUnsent()") == [{"id": item, "text": "Wait for me."}]


def test_few_messages_wait_for_a_connection(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.call().deaf = True
    page.evaluate("() => { for (let sent = 0; sent < 32; sent += 1) client.sendText('x'); }")
    code = page.evaluate("() => { try { client.sendText('x'); } catch (error) { return error.code; } }")
    assert code == "too_many_waiting"


def test_another_microphone_is_taken_also_between_connections(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    service.refusal = (503, "service_not_ready", 60)
    service.call().drop()
    page.wait_for_function("() => states.some((one) => one.attempt === 2)")
    page.evaluate("async () => { await client.replaceMicrophone(track.clone()); client.interrupt(); }")
    service.refusal = None
    page.evaluate("client.retryNow()")
    service.call(2).next("session.resume")


# ---- other services --------------------------------------------------------------------------------


def test_a_token_is_traded_for_a_secret(page: Page, service: FakeService) -> None:
    service.token = "ek_secret"
    page.evaluate(BEGIN, {"token": "long-lived", "exchangeToken": True})
    assert service.requests[0]["authorization"] == "Bearer ek_secret"
    assert service.calls[0].number == 1


def test_stock_services_get_no_extensions(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {"extensions": False, "model": "any"})
    call = service.call()
    call.begin_reply("resp_1", "Hello.")
    call.end_reply("resp_1", "Hello.")
    page.evaluate("client.send('session.update', { session: { type: 'realtime' } })")
    call.next("session.update")
    assert service.requests[0]["query"] == "model=any"
    assert "playback.ack" not in call.types()


def test_a_message_that_the_channel_cannot_carry_is_refused(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    code = page.evaluate("() => { try { client.sendText('x'.repeat(70000)); } catch (error) { return error.code; } }")
    assert code == "message_too_large"
    page.evaluate("client.hangUp()")
    code = page.evaluate("() => { try { client.sendText('x'); } catch (error) { return error.code; } }")
    assert code == "not_connected"


def test_the_clock_of_the_microphone_is_known(page: Page, service: FakeService) -> None:
    page.evaluate(BEGIN, {})
    first, later = page.evaluate("async () => [await client.timeOfInput(0), await client.timeOfInput(1000)]")
    now = page.evaluate("performance.now()")
    assert later - first == pytest.approx(1_000, abs=100)
    assert now - 10_000 < first < now + 100
