/**
 * The voice chat page: joins the call (`duplex-client.js`), the conversation (`conversation.js`), sound and
 * the document.
 *
 * Theory of operation
 *   A call has a phase (idle, connecting, connected, reconnecting, closed), and while connected the conversation has
 *   an activity. Both are attributes of the body, which the style sheet colours. Everything visible follows from the two,
 *   the lines and at most one notice.
 *
 * Rules
 * - Sound is played by the audio element straight from the connection; meters only listen in.
 * - The microphone is open during a call only. The token lives in this object and nowhere else.
 */

import { Conversation } from "./conversation.js";
import { DuplexClient, voicesOf } from "./duplex-client.js";
import { Meter, READ_EVERY_MS } from "./levels.js";
import { DeviceError, namedDevices, obstacle, openMicrophone, silentTrack } from "./microphone.js";
import { noticeOf } from "./notices.js";
import { loadPreferences, savePreferences, sessionOf } from "./preferences.js";
import { Announcer, Captions, NoticeBox } from "./view.js";

/** An interruption is shown for so long before what follows it. */
const INTERRUPTED_MS = 1_200;
/** Silence that ends a stretch of the service's sound, longer than a stop inside a word. */
const REPLY_QUIET_MS = 120;
const CALLER_QUIET_MS = 200;
/** A working microphone gives some noise long before; one that is switched off gives none. */
const MICROPHONE_SILENT_MS_MAX = 8_000;
/** Refusals that come of two hands on one door: the reply had ended just then. */
const HARMLESS = new Set(["response_cancel_not_active"]);

const PHASE_WORDS = {
  idle: ["Ready", "You can interrupt at any time."],
  connecting: ["Connecting", "Just a moment."],
  reconnecting: ["Reconnecting", "The connection broke. It is being restored."],
  closed: ["Call ended", "Press the button to talk again."],
};
const ACTIVITY_WORDS = {
  listening: ["Listening", "Go ahead."],
  hearing: ["Hearing you", "Pause when you are done."],
  thinking: ["Thinking", "One moment."],
  speaking: ["Speaking", "Talk over it to interrupt."],
  interrupted: ["Interrupted", "Your turn."],
};

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
function find(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new TypeError(`the page has no ${kind.name} #${id}`);
  return found;
}

class VoicePage {
  constructor() {
    this.talk = find("talk", HTMLButtonElement);
    this.mute = find("mute", HTMLButtonElement);
    this.stop = find("stop", HTMLButtonElement);
    this.download = find("download", HTMLButtonElement);
    this.message = find("message", HTMLInputElement);
    this.sound = find("sound", HTMLAudioElement);
    this.settings = find("settings", HTMLDialogElement);
    this.clock = find("clock", HTMLElement);
    this.orb = /** @type {HTMLElement} */ (document.querySelector(".orb"));
    this.levels = /** @type {HTMLElement} */ (document.querySelector(".levels"));
    this.captions = new Captions({
      scroller: find("captions", HTMLElement),
      list: find("lines", HTMLElement),
      empty: find("empty", HTMLElement),
      latest: find("latest", HTMLElement),
    });
    this.notice = new NoticeBox(find("notice", HTMLElement), (action, token) => this.act(action, token));
    this.announcer = new Announcer(find("announcer", HTMLElement), find("alerts", HTMLElement));
    this.preferences = loadPreferences();
    this.conversation = new Conversation();
    /** @type {keyof typeof PHASE_WORDS | "connected"} */
    this.phase = "idle";
    this.token = "";
    /** @type {DuplexClient | null} */
    this.client = null;
    /** @type {AudioContext | null} */
    this.context = null;
    /** @type {MediaStreamTrack | null} */
    this.microphone = null;
    /** The caller types and has no microphone open. */
    this.isSilent = false;
    this.isMuted = false;
    /** @type {Meter | null} */
    this.micMeter = null;
    /** @type {Meter | null} */
    this.speakerMeter = null;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.ticking = undefined;
    this.startedAt = 0;
    this.clickedAt = 0;
    /** Which press of the button counts; one that was overtaken ends quietly. */
    this.attempt = 0;
    /** @type {WakeLockSentinel | null} */
    this.wakeLock = null;
  }

  begin() {
    this.listen();
    this.fillSettings();
    const blocked = obstacle();
    if (blocked) {
      this.explain(blocked);
      this.talk.disabled = true;
      this.message.disabled = true;
    }
    this.draw();
  }

  listen() {
    this.talk.addEventListener("click", () => this.talkPressed());
    this.mute.addEventListener("click", () => this.mutePressed());
    this.stop.addEventListener("click", () => this.interrupt());
    this.download.addEventListener("click", () => this.save());
    find("composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.typed();
    });
    find("settings-open", HTMLButtonElement).addEventListener("click", () => this.openSettings());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.settings.open && this.isStoppable) this.interrupt();
    });
    window.addEventListener("pagehide", () => this.client?.hangUp());
    window.addEventListener("online", () => this.client?.retryNow());
    document.addEventListener("visibilitychange", () => this.cameBack());
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.listDevices());
  }

  // ---- the call -----------------------------------------------------------------------------------

  get isInCall() {
    return this.phase === "connecting" || this.phase === "connected" || this.phase === "reconnecting";
  }

  get isStoppable() {
    return this.phase === "connected" && (this.conversation.isReplying || this.conversation.activity === "speaking");
  }

  talkPressed() {
    if (this.isInCall) this.end();
    else this.start({ silent: false });
  }

  /**
   * Call, or take up the call that broke. Resolves true once connected.
   * @param {{ silent: boolean }} how silent: without a microphone
   */
  async start({ silent }) {
    const attempt = ++this.attempt;
    this.clickedAt = performance.now();
    this.notice.clear();
    this.isSilent = silent;
    this.isMuted = false;
    this.become("connecting");
    try {
      this.context = new AudioContext({ latencyHint: "interactive" });
      const track = silent ? silentTrack(this.context) : await openMicrophone(this.preferences.microphone);
      if (attempt !== this.attempt) {
        track.stop();
        return false;
      }
      this.useMicrophone(track);
      this.client = this.client?.isResumable ? this.client : this.newClient();
      await this.client.connect(track);
      return true;
    } catch (error) {
      if (error instanceof DeviceError && attempt === this.attempt) this.failed(error);
      return false; // a CallError came as state `closed`
    }
  }

  newClient() {
    const client = new DuplexClient({
      token: () => this.token,
      session: sessionOf(this.preferences),
      outputLatencyMs: () => (this.context?.outputLatency ?? 0) * 1000,
    });
    client.addEventListener("state", (event) => this.callChanged(client, event));
    client.addEventListener("track", (event) => this.play(/** @type {CustomEvent} */ (event).detail.stream));
    client.addEventListener("event", (event) => this.heard(/** @type {CustomEvent} */ (event).detail));
    return client;
  }

  /** @param {DuplexClient} client @param {Event} event */
  callChanged(client, event) {
    if (client !== this.client) return;
    const { state, error } = /** @type {CustomEvent} */ (event).detail;
    if (state === "connected") this.connected();
    else if (state === "reconnecting") this.reconnecting();
    else if (state === "closed" && error) this.failed(error);
    else if (state === "closed") this.closed();
  }

  connected() {
    const again = this.phase === "reconnecting" || (this.client?.isResumable && this.startedAt > 0);
    this.become("connected");
    this.notice.clear();
    if (!this.startedAt) {
      this.startedAt = performance.now();
      this.conversation.note(`Connected in ${Math.round(this.startedAt - this.clickedAt)} ms`);
    } else if (again) {
      this.conversation.note("Reconnected");
    }
    this.announcer.say(again ? "Reconnected. Listening." : "Connected. Listening.");
    this.listDevices();
    this.keepAwake();
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
  }

  closed() {
    if (this.startedAt) {
      this.conversation.note(`Call ended after ${minutes(performance.now() - this.startedAt)}`);
      this.announcer.say("Call ended.");
    }
    this.startedAt = 0;
    this.become(this.conversation.lines.length ? "closed" : "idle");
    this.release();
  }

  /** @param {{ code: string, message?: string }} error */
  failed(error) {
    if (!this.client?.isResumable) this.startedAt = 0;
    this.become(this.conversation.lines.length ? "closed" : "idle");
    this.release();
    this.explain(error);
  }

  release() {
    this.conversation.connectionLost();
    clearInterval(this.ticking);
    this.ticking = undefined;
    this.microphone?.stop();
    this.microphone = null;
    for (const meter of [this.micMeter, this.speakerMeter]) meter?.close();
    this.micMeter = null;
    this.speakerMeter = null;
    this.sound.srcObject = null;
    this.context?.close();
    this.context = null;
    this.wakeLock?.release();
    this.wakeLock = null;
    this.draw();
  }

  // ---- sound --------------------------------------------------------------------------------------

  /** @param {MediaStreamTrack} track */
  useMicrophone(track) {
    if (this.microphone !== track) this.microphone?.stop();
    this.microphone = track;
    track.enabled = !this.isMuted;
    track.addEventListener("ended", () => this.microphoneGone(track));
    this.micMeter?.close();
    this.micMeter = this.context && new Meter(this.context, new MediaStream([track]));
    this.ticking ??= setInterval(() => this.tick(), READ_EVERY_MS);
  }

  /** @param {MediaStreamTrack} track it was unplugged */
  async microphoneGone(track) {
    if (track !== this.microphone || !this.isInCall) return;
    await this.changeMicrophone("");
  }

  /** @param {string} deviceId */
  async changeMicrophone(deviceId) {
    try {
      const track = await openMicrophone(deviceId);
      this.isSilent = false;
      this.useMicrophone(track);
      await this.client?.replaceMicrophone(track);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.explain(error);
    }
    this.draw();
  }

  /** @param {MediaStream} stream the service's, anew after each reconnection */
  async play(stream) {
    if (!this.context) return;
    this.speakerMeter?.close();
    this.speakerMeter = new Meter(this.context, stream);
    this.sound.srcObject = stream;
    this.useSpeaker();
    try {
      await this.sound.play();
    } catch (error) {
      // AbortError: a newer stream took its place.
      if (error instanceof DOMException && error.name === "NotAllowedError") this.explain({ code: "playback_blocked" });
    }
  }

  useSpeaker() {
    if (!("setSinkId" in this.sound) || this.sound.sinkId === this.preferences.speaker) return;
    this.sound.setSinkId(this.preferences.speaker).catch(() => this.sound.setSinkId("")); // it was unplugged since
  }

  /** Look at both meters, and at the clock. */
  tick() {
    const now = performance.now();
    this.micMeter?.read(now, CALLER_QUIET_MS);
    const speaker = this.speakerMeter;
    if (speaker) {
      speaker.read(now, REPLY_QUIET_MS);
      if (this.measure(now, speaker)) this.captions.show(this.conversation.lines);
    }
    this.drawLevels();
    if (this.startedAt) this.clock.textContent = minutes(now - this.startedAt);
    this.checkMicrophone(now);
  }

  /** @param {number} now @param {Meter} speaker @returns {boolean} a figure has come */
  measure(now, speaker) {
    if (now - speaker.audibleAt < REPLY_QUIET_MS) return this.conversation.replyAudible(speaker.onsetAt);
    if (!this.conversation.isStopping) return false;
    this.conversation.fellSilent(speaker.audibleAt);
    return true;
  }

  /** @param {number} now */
  checkMicrophone(now) {
    const meter = this.micMeter;
    if (!meter || this.phase !== "connected" || this.isSilent || this.isMuted || meter.wasAlive) return;
    if (now - meter.madeAt < MICROPHONE_SILENT_MS_MAX) return;
    meter.wasAlive = true; // said once
    this.explain({ code: "microphone_silent" });
  }

  async mutePressed() {
    if (this.isSilent) {
      await this.changeMicrophone(this.preferences.microphone);
      return;
    }
    this.isMuted = !this.isMuted;
    if (this.microphone) this.microphone.enabled = !this.isMuted;
    this.draw();
  }

  /** Phones switch the screen off, and with it the microphone. */
  async keepAwake() {
    try {
      this.wakeLock = (await navigator.wakeLock?.request("screen")) ?? null;
    } catch {
      this.wakeLock = null; // low battery, or the page is hidden
    }
  }

  cameBack() {
    if (document.visibilityState !== "visible" || !this.isInCall) return;
    this.context?.resume();
    this.client?.retryNow();
    if (!this.wakeLock || this.wakeLock.released) this.keepAwake();
  }

  // ---- the conversation ---------------------------------------------------------------------------

  /** @param {any} event of the service */
  heard(event) {
    const now = performance.now();
    const before = this.conversation.activity;
    const line = this.conversation.apply(event, now);
    if (line) this.announcer.say(`${line.speaker === "caller" ? "You" : "Duplex"}: ${line.text}`);
    if (event.type === "input_audio_buffer.speech_started") this.placeSpeech(event.audio_start_ms, "speechBegan");
    if (event.type === "input_audio_buffer.speech_stopped") this.placeSpeech(event.audio_end_ms, "speechEnded");
    if (event.type === "error" && !HARMLESS.has(event.error?.code)) this.explain(event.error);
    if (event.type === "response.done" && event.response.status === "failed") {
      this.explain(event.response.status_details?.error ?? {});
    }
    if (this.conversation.activity === "interrupted" && before !== "interrupted") {
      this.announcer.say("Interrupted.");
      setTimeout(() => {
        this.conversation.settle();
        this.draw();
      }, INTERRUPTED_MS);
    }
    this.draw();
  }

  /** @param {number} inputMs @param {"speechBegan" | "speechEnded"} told */
  async placeSpeech(inputMs, told) {
    const at = await this.client?.timeOfInput(inputMs);
    if (at !== null && at !== undefined) this.conversation[told](at, performance.now());
  }

  interrupt() {
    this.conversation.stopPressed(performance.now());
    this.client?.interrupt();
  }

  async typed() {
    const text = this.message.value.trim();
    if (!text || this.phase === "connecting" || this.phase === "reconnecting") return;
    if (!this.isInCall && !(await this.start({ silent: true }))) return;
    if (this.isStoppable) this.interrupt();
    this.message.value = "";
    this.conversation.typed(performance.now());
    this.client?.sendText(text);
    this.draw();
  }

  save() {
    const text = `${document.title}, ${new Date().toLocaleString()}\n\n${this.conversation.transcript()}\n`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = `duplex-${new Date().toISOString().slice(0, 16).replace(":", "")}.txt`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 0);
  }

  // ---- notices ------------------------------------------------------------------------------------

  /** @param {{ code?: string, message?: string, retryAfterS?: number | null }} error */
  explain(error) {
    const notice = noticeOf(error);
    this.notice.show(notice, () => this.announcer.say("You can try again now."));
    this.announcer.say(`${notice.title}. ${notice.text}`, true);
  }

  /** @param {string} action @param {string} token */
  act(action, token) {
    this.notice.clear();
    if (action === "token") this.token = token;
    if (action === "listen") {
      this.context?.resume();
      this.sound.play();
      return;
    }
    if (this.isInCall && action === "retry") {
      this.changeMicrophone(this.preferences.microphone);
      return;
    }
    this.talk.focus();
    this.start({ silent: this.isSilent });
  }

  // ---- settings -----------------------------------------------------------------------------------

  fillSettings() {
    for (const name of /** @type {const} */ (["instructions", "voice", "speed", "microphone", "speaker"])) {
      const field = /** @type {HTMLInputElement} */ (find(name, HTMLElement));
      field.value = this.preferences[name];
      field.addEventListener("change", () => this.chose(name, field.value));
    }
    find("speaker-field", HTMLElement).hidden = !("setSinkId" in this.sound);
    this.listDevices();
  }

  openSettings() {
    this.listDevices();
    this.listVoices();
    this.settings.showModal();
  }

  /** @param {keyof import("./preferences.js").Preferences} name @param {string} value */
  chose(name, value) {
    this.preferences[name] = value;
    savePreferences(this.preferences);
    if (name === "speaker") this.useSpeaker();
    else if (name === "microphone") {
      if (this.isInCall && !this.isSilent) this.changeMicrophone(value);
    } else if (this.phase === "connected") this.client?.updateSession(sessionOf(this.preferences));
  }

  async listDevices() {
    const { microphones, speakers } = await namedDevices();
    this.fillWithDevices("microphone", microphones);
    this.fillWithDevices("speaker", speakers);
  }

  /** @param {"microphone" | "speaker"} name @param {MediaDeviceInfo[]} devices */
  fillWithDevices(name, devices) {
    const options = devices.map((one) => new Option(one.label, one.deviceId));
    fillChoice(find(name, HTMLSelectElement), [new Option("System default", ""), ...options], this.preferences[name]);
  }

  /** Before the service has its token it tells nothing: then there is the usual voice, and what was chosen once. */
  async listVoices() {
    const { voice } = this.preferences;
    const [usual = "", ...others] = await voicesOf(this.token).catch(() => (voice ? ["", voice] : []));
    const options = [new Option(usual ? `${usual} (usual)` : "Default", ""), ...others.map((name) => new Option(name))];
    fillChoice(find("voice", HTMLSelectElement), options, voice);
  }

  // ---- drawing ------------------------------------------------------------------------------------

  /** @param {VoicePage["phase"]} phase */
  become(phase) {
    this.phase = phase;
    this.draw();
  }

  draw() {
    const { activity, lines } = this.conversation;
    document.body.dataset.phase = this.phase;
    document.body.dataset.activity = activity;
    document.body.classList.toggle("in-call", this.isInCall);
    const [state, hint] = this.words(activity);
    find("state", HTMLElement).textContent = state;
    find("hint", HTMLElement).textContent = hint;
    find("talk-label", HTMLElement).textContent = this.talkLabel();
    this.drawMute();
    this.stop.disabled = !this.isStoppable;
    this.download.disabled = lines.length === 0;
    this.clock.hidden = !this.isInCall || !this.startedAt;
    this.captions.show(lines);
  }

  /** @param {keyof typeof ACTIVITY_WORDS} activity */
  words(activity) {
    if (this.phase !== "connected") return PHASE_WORDS[this.phase];
    if (activity !== "listening") return ACTIVITY_WORDS[activity];
    if (this.isSilent) return ["Connected", "Type a message, or turn the microphone on."];
    return this.isMuted ? ["Muted", "You are not heard until you unmute."] : ACTIVITY_WORDS.listening;
  }

  talkLabel() {
    if (this.isInCall) return "End call";
    return this.client?.isResumable ? "Reconnect" : "Start talking";
  }

  drawMute() {
    this.mute.disabled = this.phase !== "connected" && this.phase !== "reconnecting";
    this.mute.setAttribute("aria-pressed", String(this.isMuted));
    find("mute-label", HTMLElement).textContent = this.isSilent ? "Use microphone" : "Mute";
  }

  drawLevels() {
    const mic = this.isMuted ? 0 : (this.micMeter?.level ?? 0);
    for (const part of [this.orb, this.levels]) {
      part.style.setProperty("--mic", mic.toFixed(3));
      part.style.setProperty("--speaker", (this.speakerMeter?.level ?? 0).toFixed(3));
    }
  }
}

/** The first option stands for what was chosen and is gone. @param {HTMLSelectElement} field
 * @param {HTMLOptionElement[]} options @param {string} chosen */
function fillChoice(field, options, chosen) {
  field.replaceChildren(...options);
  field.value = options.some(({ value }) => value === chosen) ? chosen : "";
}

/** @param {number} ms */
function minutes(ms) {
  const seconds = Math.floor(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

new VoicePage().begin();
