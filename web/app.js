/**
 * The voice chat page: joins the call (`duplex-client.js`), the conversation (`conversation.js`), sound and
 * the document.
 *
 * Theory of operation
 *   A call has a phase (idle, connecting, connected, reconnecting, closed), and while connected the conversation has
 *   an activity. Both are attributes of the body, which the style sheet colours. Everything visible follows from the two,
 *   the lines and at most one notice. A client is one conversation: it outlives failed and broken connections, and is
 *   let go when the caller hangs up or begins anew.
 *
 * Rules
 * - The token lives in this object and nowhere else.
 * - What the caller has typed is never lost: it stands as a line, is sent, or goes back into its field.
 */

import { Conversation } from "./conversation.js";
import { CallError, DuplexClient } from "./duplex-client.js";
import { READ_EVERY_MS } from "./levels.js";
import { DeviceError, obstacle } from "./microphone.js";
import { noticeInCall, noticeOf, noticeOfReply } from "./notices.js";
import { loadPreferences, sessionOf } from "./preferences.js";
import { Settings } from "./settings.js";
import { CallSound, REPLY_QUIET_MS } from "./sound.js";
import { saveTranscript } from "./transcript.js";
import { Announcer, Captions, NoticeBox, find, keepFocus } from "./view.js";
import { WakeLock } from "./wake-lock.js";
import { stateWords } from "./words.js";

/** @typedef {import("./notices.js").Notice} Notice */
/** @typedef {import("./notices.js").Problem} Problem */

/** An interruption is shown for so long before what follows it. */
const INTERRUPTED_MS = 1_200;
/** A working microphone gives some noise long before; one that is switched off gives none. */
const MICROPHONE_SILENT_MS_MAX = 8_000;
/** Refusals that come of two hands on one door: the reply had ended just then, the message had arrived before. */
const HARMLESS = new Set(["response_cancel_not_active", "item_exists"]);
/** From here on the call stands beside the conversation, as in style.css. */
const WIDE = matchMedia("(min-width: 56rem)");

class VoicePage {
  constructor() {
    this.talk = find("talk", HTMLButtonElement);
    this.mute = find("mute", HTMLButtonElement);
    this.stop = find("stop", HTMLButtonElement);
    this.fresh = find("fresh", HTMLButtonElement);
    this.download = find("download", HTMLButtonElement);
    this.message = find("message", HTMLInputElement);
    this.sound = new CallSound(find("sound", HTMLAudioElement), () => this.changeMicrophone(""));
    this.clock = find("clock", HTMLElement);
    this.stage = find("stage", HTMLElement);
    const scroller = find("captions", HTMLElement);
    this.captions = new Captions({
      scroller,
      list: find("lines", HTMLElement),
      empty: find("empty", HTMLElement),
      latest: find("latest", HTMLElement),
    });
    this.notice = new NoticeBox(find("notice", HTMLElement), scroller, (action, token) => this.act(action, token));
    this.announcer = new Announcer(find("announcer", HTMLElement), find("alerts", HTMLElement));
    this.preferences = loadPreferences();
    this.settings = new Settings(
      this.preferences,
      () => this.token,
      (name) => this.preferred(name),
    );
    this.conversation = new Conversation();
    /** @type {import("./words.js").Phase} */
    this.phase = "idle";
    this.token = "";
    /** @type {DuplexClient | null} */
    this.client = null;
    /** The caller types and has no microphone open. */
    this.isSilent = false;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.ticking = undefined;
    this.startedAt = 0;
    this.hasTalked = false;
    this.clickedAt = 0;
    /** Which press of the button counts; one that was overtaken ends quietly. */
    this.attempt = 0;
    this.wakeLock = new WakeLock();
  }

  begin() {
    this.listen();
    this.settings.begin(this.sound.hasSpeakers);
    const blocked = obstacle();
    if (blocked) {
      this.explain(noticeOf(blocked));
      this.talk.disabled = true;
      this.message.disabled = true;
    }
    this.arrange();
    this.draw();
  }

  listen() {
    this.talk.addEventListener("click", () => this.talkPressed());
    this.mute.addEventListener("click", () => this.mutePressed());
    this.stop.addEventListener("click", () => this.interrupt());
    this.fresh.addEventListener("click", () => this.restart());
    this.download.addEventListener("click", () => saveTranscript(this.conversation.lines));
    find("composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.typed();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.settings.isOpen) this.interrupt();
    });
    window.addEventListener("pagehide", () => this.client?.hangUp());
    window.addEventListener("online", () => this.client?.retryNow());
    document.addEventListener("visibilitychange", () => this.cameBack());
    WIDE.addEventListener("change", () => this.arrange());
  }

  // ---- the call -----------------------------------------------------------------------------------

  get isInCall() {
    return this.phase === "connecting" || this.phase === "connected" || this.phase === "reconnecting";
  }

  /** The call broke, and can be taken up where it was left. */
  get isResumable() {
    return !this.isInCall && (this.client?.isResumable ?? false);
  }

  get isMuted() {
    return this.sound.isMuted && !this.isSilent;
  }

  get isStoppable() {
    return this.phase === "connected" && (this.conversation.isReplying || this.conversation.activity === "speaking");
  }

  talkPressed() {
    if (this.isInCall) this.end();
    else this.start({ silent: this.isResumable && this.isSilent });
  }

  /**
   * Call, or take up the call that broke.
   * @param {{ silent: boolean }} how silent: without a microphone
   */
  async start({ silent }) {
    const attempt = ++this.attempt;
    this.clickedAt = performance.now();
    this.notice.clear();
    this.isSilent = silent;
    if (!this.isResumable) this.sound.isMuted = false;
    this.become("connecting");
    try {
      this.client ??= this.newClient();
      this.sound.begin();
      const track = silent ? this.sound.silence() : await this.sound.open(this.preferences.microphone);
      if (!track) return;
      this.ticking ??= setInterval(() => this.tick(), READ_EVERY_MS);
      await this.client.connect(track);
    } catch (error) {
      // A CallError came as state `closed`.
      if (attempt === this.attempt && !(error instanceof CallError)) this.failed(asProblem(error));
    }
  }

  newClient() {
    const client = new DuplexClient({
      token: () => this.token,
      session: sessionOf(this.preferences),
      outputLatencyMs: () => this.sound.outputLatencyMs,
    });
    /** @param {string} type @param {(detail: any) => void} take what comes of a client that was let go is not for us */
    const on = (type, take) =>
      client.addEventListener(type, (event) => {
        if (client === this.client) take(/** @type {CustomEvent} */ (event).detail);
      });
    on("state", (detail) => this.callChanged(detail));
    on("track", ({ stream }) => this.playing(this.sound.play(stream, this.preferences.speaker)));
    on("event", (event) => this.heard(event));
    return client;
  }

  /** @param {{ state: string, error?: CallError | null }} change */
  callChanged({ state, error }) {
    if (state === "connected") this.connected();
    else if (state === "reconnecting") this.reconnecting();
    else if (state === "closed" && error) this.failed(error);
    else if (state === "closed") this.closed();
  }

  connected() {
    const again = this.startedAt > 0;
    this.become("connected");
    this.notice.clear();
    if (!again) {
      this.startedAt = performance.now();
      this.conversation.note(`Connected in ${Math.round(this.startedAt - this.clickedAt)} ms`);
    } else {
      this.conversation.note("Reconnected");
    }
    this.hasTalked = true;
    this.announcer.say(again ? "Reconnected. Listening." : "Connected. Listening.");
    const { microphone } = this.preferences;
    if (!this.isSilent && this.sound.deviceId !== microphone) this.changeMicrophone(microphone); // chosen meanwhile
    this.settings.listDevices();
    this.wakeLock.hold();
    this.draw();
  }

  reconnecting() {
    if (this.phase !== "reconnecting") {
      this.conversation.connectionLost();
      this.announcer.say("The connection broke. Reconnecting.", true);
    }
    this.become("reconnecting");
  }

  /** The caller hangs up. */
  end() {
    this.attempt += 1;
    if (this.client && this.client.state !== "idle" && this.client.state !== "closed") this.client.hangUp();
    else this.closed();
    this.letGo();
  }

  /** Begin another conversation. */
  restart() {
    this.letGo();
    this.startedAt = 0;
    this.start({ silent: this.isSilent });
  }

  /** The conversation is not gone on with. */
  letGo() {
    this.takeBack();
    this.client = null;
    this.draw();
  }

  closed() {
    if (this.startedAt) {
      this.conversation.note(`Call ended after ${minutes(performance.now() - this.startedAt)}`);
      this.announcer.say("Call ended.");
    }
    this.startedAt = 0;
    this.notice.clear();
    this.rest();
  }

  /** @param {Problem} error */
  failed(error) {
    const notice = noticeOf(error);
    if (!this.client?.isResumable) this.startedAt = 0;
    if (!notice.action || notice.action === "restart") this.takeBack(); // else what was typed goes out with the next try
    this.rest();
    this.explain(notice);
  }

  /** No call is going on any more. */
  rest() {
    this.conversation.connectionLost();
    clearInterval(this.ticking);
    this.ticking = undefined;
    this.sound.close();
    this.wakeLock.release();
    this.become(this.hasTalked ? "closed" : "idle");
  }

  // ---- sound --------------------------------------------------------------------------------------

  /** Speak through another microphone than before, or through one at all. @param {string} deviceId */
  async changeMicrophone(deviceId) {
    try {
      const track = await this.sound.open(deviceId);
      if (!track) return;
      this.isSilent = false;
      if (this.notice.action === "microphone") this.notice.clear();
      this.draw();
      await this.client?.replaceMicrophone(track);
    } catch (error) {
      this.explain(noticeInCall(asProblem(error)));
    }
  }

  /** @param {Promise<boolean>} playing */
  async playing(playing) {
    const isAudible = await playing;
    if (!isAudible && this.isInCall) this.explain(noticeInCall({ code: "playback_blocked" }));
  }

  /** Look at both meters, and at the clock. */
  tick() {
    const now = performance.now();
    this.sound.read(now);
    const isMeasured = this.measure(now);
    if (this.conversation.follow(now) || isMeasured) this.captions.show(this.conversation.lines);
    if (this.conversation.activity !== document.body.dataset.activity) this.draw();
    this.drawLevels();
    if (this.startedAt) this.clock.textContent = minutes(now - this.startedAt);
    this.checkMicrophone(now);
  }

  /** @param {number} now @returns {boolean} a figure has come */
  measure(now) {
    const speaker = this.sound.service;
    if (!speaker) return false;
    if (now - speaker.audibleAt < REPLY_QUIET_MS) return this.conversation.replyAudible(speaker.onsetAt);
    if (!this.conversation.isStopping) return false;
    this.conversation.fellSilent(speaker.audibleAt);
    return true;
  }

  /** @param {number} now */
  checkMicrophone(now) {
    const meter = this.sound.caller;
    if (!meter || this.phase !== "connected" || this.isSilent || this.isMuted || meter.wasAlive) return;
    if (now - meter.madeAt < MICROPHONE_SILENT_MS_MAX) return;
    meter.wasAlive = true; // said once
    this.explain(noticeInCall({ code: "microphone_silent" }));
  }

  mutePressed() {
    this.sound.isMuted = !this.isSilent && !this.isMuted;
    if (this.isSilent) this.changeMicrophone(this.preferences.microphone);
    this.draw();
  }

  cameBack() {
    if (document.visibilityState !== "visible" || !this.isInCall) return;
    this.playing(this.sound.resume());
    this.client?.retryNow();
    this.wakeLock.hold();
  }

  // ---- the conversation ---------------------------------------------------------------------------

  /** @param {any} event of the service */
  heard(event) {
    const before = this.conversation.activity;
    const line = this.conversation.apply(event, performance.now());
    if (line && this.preferences.reading) {
      this.announcer.say(`${line.speaker === "caller" ? "You" : "Duplex"}: ${line.text}`);
    }
    if (event.type === "input_audio_buffer.speech_started") this.placeSpeech(event.audio_start_ms, "speechBegan");
    if (event.type === "input_audio_buffer.speech_stopped") this.placeSpeech(event.audio_end_ms, "speechEnded");
    if (event.type === "response.created" && this.notice.action === "reply") this.notice.clear();
    if (event.type === "response.done" && event.response.status === "failed") {
      this.explain(noticeOfReply(event.response.status_details?.error ?? {}));
    }
    if (event.type === "error" && !HARMLESS.has(event.error.code)) this.refused(event.error);
    if (this.conversation.activity === "interrupted" && before !== "interrupted") this.interrupted();
    this.draw();
  }

  interrupted() {
    this.announcer.say("Interrupted.");
    setTimeout(() => {
      this.conversation.settle();
      this.draw();
    }, INTERRUPTED_MS);
  }

  /** @param {Problem & { event_id?: string }} error a message that it names is given back */
  refused(error) {
    this.giveBack(error.event_id ?? "");
    this.explain(noticeInCall({ message: error.message }));
  }

  /** @param {number} inputMs @param {"speechBegan" | "speechEnded"} told */
  async placeSpeech(inputMs, told) {
    const { client } = this;
    const at = await client?.timeOfInput(inputMs);
    const isStill = client === this.client && this.phase === "connected";
    if (isStill && at !== null && at !== undefined) this.conversation[told](at, performance.now());
  }

  interrupt() {
    if (!this.isStoppable) return;
    this.conversation.stopPressed(performance.now());
    this.client?.interrupt();
  }

  /** The line stands at once; the client sends it when there is a connection. */
  typed() {
    const text = this.message.value.trim();
    if (!text) return;
    if (!this.isInCall) this.start({ silent: true });
    this.interrupt();
    try {
      const id = this.client?.sendText(text);
      if (!id) return;
      this.message.value = "";
      this.conversation.typed(id, text);
      if (this.phase === "connected") this.conversation.asked(performance.now());
      this.draw();
    } catch (error) {
      this.explain(noticeInCall(asProblem(error)));
    }
  }

  /** Messages that no connection has carried are the caller's again. */
  takeBack() {
    for (const { id } of this.client?.takeUnsent().reverse() ?? []) this.giveBack(id);
  }

  /** @param {string} id of the message, which goes before what is being typed; the caret stays if there is none */
  giveBack(id) {
    const text = this.conversation.withdraw(id);
    if (text) this.message.value = `${text} ${this.message.value}`.trim();
  }

  // ---- notices and settings -----------------------------------------------------------------------

  /** @param {Notice} notice */
  explain(notice) {
    this.notice.show(notice, () => this.announcer.say("You can try again now."));
    this.announcer.say(`${notice.title}. ${notice.text}`, true);
  }

  /** @param {NonNullable<Notice["action"]>} action @param {string} token */
  act(action, token) {
    this.notice.clear();
    if (action === "token") this.token = token;
    if (action === "listen") this.playing(this.sound.resume());
    else if (action === "reply") this.client?.askForReply();
    else if (action === "restart") this.restart();
    else if (action === "microphone" && this.isInCall) this.changeMicrophone(this.preferences.microphone);
    else this.start({ silent: this.isSilent });
  }

  /** @param {keyof import("./preferences.js").Preferences} name what has changed */
  preferred(name) {
    const { microphone, speaker } = this.preferences;
    if (name === "speaker") this.sound.speakThrough(speaker);
    else if (name === "microphone") {
      const isOpen = this.isInCall && this.phase !== "connecting" && !this.isSilent;
      if (isOpen) this.changeMicrophone(microphone);
    } else if (name === "figures") this.draw();
    else if (name !== "reading") this.client?.updateSession(sessionOf(this.preferences));
  }

  // ---- drawing ------------------------------------------------------------------------------------

  /** On a phone the call stands at the thumb, below the conversation: the order for Tab follows the eye. */
  arrange() {
    const { stage } = this;
    const main = /** @type {HTMLElement} */ (stage.parentElement);
    keepFocus(() => (WIDE.matches ? main.prepend(stage) : main.append(stage)), this.talk);
  }

  /** @param {VoicePage["phase"]} phase */
  become(phase) {
    this.phase = phase;
    this.draw();
  }

  draw() {
    keepFocus(() => this.drawState(), this.talk);
    this.captions.show(this.conversation.lines);
  }

  drawState() {
    const { activity, lines } = this.conversation;
    document.body.dataset.phase = this.phase;
    document.body.dataset.activity = activity;
    document.body.classList.toggle("in-call", this.isInCall);
    document.body.classList.toggle("no-figures", !this.preferences.figures);
    const [state, hint] = stateWords(this.phase, activity, this);
    find("state", HTMLElement).textContent = state;
    find("hint", HTMLElement).textContent = hint;
    find("talk-label", HTMLElement).textContent = this.talkLabel();
    this.drawMute();
    this.stop.hidden = !this.isInCall;
    this.stop.setAttribute("aria-disabled", String(!this.isStoppable)); // it keeps the focus
    this.fresh.hidden = !this.isResumable;
    this.download.disabled = lines.length === 0;
    this.clock.hidden = !this.isInCall || !this.startedAt;
  }

  talkLabel() {
    if (this.isInCall) return "End call";
    return this.isResumable ? "Reconnect" : "Start talking";
  }

  drawMute() {
    this.mute.hidden = !this.isInCall;
    this.mute.disabled = this.phase === "connecting";
    this.mute.setAttribute("aria-pressed", String(this.isMuted));
    this.mute.setAttribute("aria-label", this.isSilent ? "Use microphone" : "Mute");
    find("mute-label", HTMLElement).textContent = this.isSilent ? "Use mic" : "Mute";
  }

  drawLevels() {
    const caller = this.isMuted ? 0 : (this.sound.caller?.level ?? 0);
    this.stage.style.setProperty("--mic", caller.toFixed(3));
    this.stage.style.setProperty("--speaker", (this.sound.service?.level ?? 0).toFixed(3));
  }
}

/** @param {unknown} error @returns {Problem} */
function asProblem(error) {
  if (error instanceof DeviceError || error instanceof CallError) return error;
  return { message: error instanceof Error ? error.message : String(error) };
}

/** @param {number} ms */
function minutes(ms) {
  const seconds = Math.floor(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

new VoicePage().begin();
