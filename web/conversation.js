/**
 * The conversation as the page shows it: lines, what is going on, and the figures of each turn.
 *
 * Theory of operation
 *   Events of the service, sounds noticed in the page and the clock go in; lines and an activity come out. A question
 *   is open from the caller's last sound (or the typed message) until the first audible sample of its reply. The text
 *   of a reply comes before its sound: `ink.js` follows how much of it was heard, and in the end the service says it.
 *
 * Rules
 * - No document, no clock: times are arguments, in ms of `performance.now()`.
 * - A line changes in place and never moves once it stands, except that a reply stands after what it answers.
 */

import { Inks, endOf, wholeWords } from "./ink.js";

/**
 * @typedef {object} Figures in ms
 * @property {number} [firstAudio] from the caller's last sound to the first audible sample of the reply
 * @property {number} [stop] from the caller's interrupting sound to the last audible sample of the reply
 * @property {number} [drain] from `response.done` to `response.drained`
 */

/**
 * @typedef {object} Line
 * @property {string} id
 * @property {"caller" | "service" | "note"} speaker
 * @property {string} text of a reply that was cut: what was heard of it
 * @property {number | null} heard so many characters of the text, as far as is known; null: all of it
 * @property {string} discarded what followed the text, and nobody has heard
 * @property {string} cutWord the first word of that, where it was cut in its midst
 * @property {"pending" | "open" | "final" | "cut" | "failed"} status pending: typed, and the service does not have it yet
 * @property {Date} at
 * @property {Figures} figures
 */

/** @typedef {{ id: string, line: Line | null, askedAt: number | null, heard: boolean }} Reply */

/** @typedef {"listening" | "hearing" | "thinking" | "speaking" | "held" | "interrupted"} Activity */

/** Lines kept for display and download; a call of an hour has some hundreds. */
const LINES_MAX = 1_000;
/** A caller's last sound cannot be longer ago than this; an older time is a wrong guess of the clocks. */
const SPEECH_AGE_MS_MAX = 15_000;
/** Most holds are over sooner, and are not worth a change of the page. */
const HOLD_SHOWN_MS = 250;

export class Conversation {
  constructor() {
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Activity} */
    this.activity = "listening";
    this._inks = new Inks();
    /** Since when a reply stands still, for speech that may interrupt it. @type {number | null} */
    this._heldAt = null;
    this._callerSpeaks = false;
    /** When the caller's last question ended. @type {number | null} */
    this._askedAt = null;
    /** The reply that is waited for or heard. @type {Reply | null} */
    this._reply = null;
    /** A reply that was interrupted and may still be audible. @type {{ line: Line | null, since: number } | null} */
    this._stopping = null;
    /** @type {Map<string, Line | null>} line of each response that has not drained */
    this._undrained = new Map();
    /** Responses that were created and are not done. @type {Set<string>} */
    this._running = new Set();
    /** When the caller's present turn was told to begin, or better known. */
    this._onsetAt = 0;
    this._pressedAt = 0;
    this._notes = 0;
  }

  /**
   * @param {any} event
   * @param {number} now
   * @returns {Line | null} the line that has become final by it, for announcing
   */
  apply(event, now) {
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this._speechStarted(event, now);
        return null;
      case "input_audio_buffer.speech_stopped":
        this._callerSpeaks = false;
        this._askedAt = now;
        this.activity = "thinking";
        return null;
      case "conversation.item.added":
      case "conversation.item.done":
        if (event.item.role === "assistant") this._replyItem(event.item, event.type.endsWith("done"), now);
        else this._typedItem(event.item, now);
        return null;
      case "session.resumed":
        for (const item of event.items ?? []) this._restore(item, now);
        return null;
      case "conversation.item.truncated":
        this._truncated(event);
        return null;
      case "error":
        if (event.error.code === "item_exists") this._confirm(event.error.event_id);
        return null;
      case "conversation.item.input_audio_transcription.completed":
        return this._callerText(event);
      case "conversation.item.input_audio_transcription.failed":
        this._finish(this._line(event.item_id), "Not understood", "failed");
        return null;
      default:
        return this._replyEvent(event, now);
    }
  }

  /** @param {any} event @param {number} now @returns {Line | null} */
  _replyEvent(event, now) {
    switch (event.type) {
      case "response.created":
        this._replyBegins(event.response);
        return null;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta": {
        const line = this._replyLine(event.item_id);
        if (line.status !== "open") return null;
        if (event.type.includes("audio")) this._inks.begin(event.response_id, line);
        line.text += event.delta;
        return null;
      }
      case "response.audio_timestamp.delta":
        this._inks.word(event);
        return null;
      case "playback.acknowledged":
        this._inks.report(event, now);
        return null;
      case "turn.held":
        if (this.activity === "speaking") this._heldAt = now;
        return null;
      case "turn.resumed":
        this._holdEnds();
        return null;
      case "output_audio_buffer.started":
        this._inks.sounds(event.response_id, now);
        if (!this._callerSpeaks) this.activity = "speaking";
        return null;
      case "output_audio_buffer.stopped":
      case "output_audio_buffer.cleared":
        this._holdEnds();
        if (event.type.endsWith("cleared") && this._stopping) this.activity = "interrupted";
        else if (this.activity === "speaking") this.activity = this._rest();
        return null;
      case "response.done":
        return this._replyEnds(event.response, now);
      case "response.drained":
        this._drained(event);
        return null;
      default:
        return null;
    }
  }

  // ---- what the page notices ----------------------------------------------------------------------

  /** The caller has typed a message: its line stands at once. @param {string} id of its item @param {string} text */
  typed(id, text) {
    this._finish(this._line(id), text, "pending");
  }

  /** A question went out by another way than speech. @param {number} now */
  asked(now) {
    this._askedAt = now;
    this.activity = "thinking";
  }

  /** A typed message that the service has not taken is withdrawn. @param {string} id @returns {string} its text */
  withdraw(id) {
    const line = this._pending(id);
    this.lines = this.lines.filter((other) => other !== line);
    return line?.text ?? "";
  }

  /** The caller has pressed “stop”. @param {number} now */
  stopPressed(now) {
    this._pressedAt = now;
  }

  /** The caller's last sound was at `at`, better known than by its event. @param {number} at @param {number} now */
  speechEnded(at, now) {
    if (at > now || now - at > SPEECH_AGE_MS_MAX) return;
    if (this._reply && this._reply.askedAt === this._askedAt) this._reply.askedAt = at;
    this._askedAt = at;
  }

  /** The caller's interrupting sound was at `at`. @param {number} at @param {number} now */
  speechBegan(at, now) {
    if (at > now || now - at > SPEECH_AGE_MS_MAX) return;
    if (this._stopping?.since === this._onsetAt) this._stopping.since = at;
    this._onsetAt = at;
  }

  /** A sound of the service was audible at `at`. @param {number} at @returns {boolean} a reply's first */
  replyAudible(at) {
    const reply = this._reply;
    if (!reply || reply.heard || (reply.askedAt !== null && at < reply.askedAt)) return false;
    reply.heard = true;
    if (reply.askedAt !== null && reply.line) reply.line.figures.firstAudio = at - reply.askedAt;
    this._askedAt = null;
    return true;
  }

  /** A reply is being made. */
  get isReplying() {
    return this._running.size > 0;
  }

  /** An interrupted reply is still to fall silent. */
  get isStopping() {
    return this._stopping !== null;
  }

  /** The service's sound ended at `at`. @param {number} at */
  fellSilent(at) {
    if (this._stopping?.line) this._stopping.line.figures.stop = Math.max(0, at - this._stopping.since);
    this._stopping = null;
  }

  /** Let the ink flow, and a hold that lasts be seen. @param {number} now @returns {boolean} a line has changed */
  follow(now) {
    const isHeld = this._heldAt !== null && now - this._heldAt >= HOLD_SHOWN_MS;
    if (isHeld && this.activity === "speaking") this.activity = "held";
    return this._inks.follow(now);
  }

  /** An interruption has been shown for long enough. */
  settle() {
    if (this.activity === "interrupted") this.activity = this._rest();
  }

  /** The connection broke: what was open stays as far as it came. */
  connectionLost() {
    for (const line of this.lines) {
      const heard = line.text.slice(0, wholeWords(line.text, line.heard ?? Infinity));
      if (line.status === "open") this._cut(line, heard.trimEnd(), "");
      this._inks.stop(line);
    }
    this._heldAt = null;
    this._reply = null;
    this._stopping = null;
    this._callerSpeaks = false;
    this._askedAt = null;
    this._undrained.clear();
    this._running.clear();
    this.activity = "listening";
  }

  /** A remark of the page's own between the lines. @param {string} text */
  note(text) {
    this._notes += 1;
    const line = this._line(`note_${this._notes}`, "note");
    this._finish(line, text, "final");
  }

  // ---- lines --------------------------------------------------------------------------------------

  /** @param {string} id @param {Line["speaker"]} [speaker] */
  _line(id, speaker = "caller") {
    const known = this.lines.find((line) => line.id === id);
    if (known) return known;
    /** @type {Line} */
    const line = {
      id,
      speaker,
      text: "",
      heard: null,
      discarded: "",
      cutWord: "",
      status: "open",
      at: new Date(),
      figures: {},
    };
    this.lines.push(line);
    if (this.lines.length > LINES_MAX) this.lines.shift();
    return line;
  }

  /** @param {Line} line @param {string} text @param {Line["status"]} status */
  _finish(line, text, status) {
    line.text = text;
    line.discarded = "";
    line.cutWord = "";
    line.status = status;
  }

  /**
   * No more of a line than `heard` was heard: the rest of it is thrown away.
   * @param {Line} line @param {string} heard @param {string} cutWord @param {Line["status"]} [status]
   */
  _cut(line, heard, cutWord, status = "cut") {
    const all = line.text + line.discarded;
    const end = endOf(heard, all);
    this._finish(line, heard, status);
    line.discarded = end < 0 ? "" : all.slice(end).trimEnd();
    line.cutWord = cutWord;
    this._inks.stop(line);
  }

  /** The service knows now what was heard of a reply. @param {any} event */
  _truncated(event) {
    const line = this.lines.find(({ id }) => id === event.item_id);
    if (line && event.transcript !== undefined) this._cut(line, event.transcript, event.cut_word);
  }

  /** What the service remembers, as it does. @param {any} item @param {number} now */
  _restore(item, now) {
    if (item.role === "assistant") this._replyItem(item, true, now);
    else if (item.content?.[0]?.type !== "input_audio") this._typedItem(item, now);
    else if (textOf(item)) this._finish(this._line(item.id), textOf(item), "final");
  }

  /** @param {any} event @param {number} now */
  _speechStarted(event, now) {
    this._holdEnds();
    this._callerSpeaks = true;
    this._onsetAt = now;
    if (this._stopping) this._stopping.since = now;
    else if (this.activity === "speaking" && this._reply?.heard)
      this._stopping = { line: this._reply.line, since: now };
    this._line(event.item_id);
    if (this.activity !== "interrupted") this.activity = "hearing";
  }

  /** @param {any} event */
  _callerText(event) {
    const line = this._line(event.item_id);
    if (!event.transcript) {
      this.lines = this.lines.filter((other) => other !== line);
      if (this.activity === "thinking") this.activity = this._rest();
      return null;
    }
    this._finish(line, event.transcript, "final");
    return line;
  }

  /** @param {any} item @param {boolean} done @param {number} now */
  _replyItem(item, done, now) {
    const line = this._replyLine(item.id);
    if (done && item.cut) this._cut(line, textOf(item), item.cut_word);
    else if (done) this._said(line, textOf(item), now);
  }

  /** A reply was said to its end. @param {Line} line @param {string} text @param {number} now */
  _said(line, text, now) {
    this._finish(line, text, "final");
    this._inks.finish(line, now);
  }

  /** @param {any} item @param {number} now */
  _typedItem(item, now) {
    if (item.role !== "user" || item.content?.[0]?.type !== "input_text") return;
    // One that had to wait for its connection was asked when that took it.
    if (this._pending(item.id) && this._askedAt === null && !this._reply) this.asked(now);
    this._finish(this._line(item.id), textOf(item), "final");
  }

  /** It was there already. @param {string} id */
  _confirm(id) {
    const line = this._pending(id);
    if (line) this._finish(line, line.text, "final");
  }

  /** @param {string} id */
  _pending(id) {
    return this.lines.find((line) => line.id === id && line.status === "pending");
  }

  /** @param {string} itemId */
  _replyLine(itemId) {
    const line = this._line(itemId, "service");
    if (this._reply && !this._reply.line) {
      this._reply.line = line;
      this._undrained.set(this._reply.id, line);
    }
    return line;
  }

  // ---- replies ------------------------------------------------------------------------------------

  /** @param {any} response */
  _replyBegins(response) {
    this._reply = { id: response.id, line: null, askedAt: this._askedAt, heard: false };
    this._undrained.set(response.id, null);
    this._running.add(response.id);
    if (!this._callerSpeaks) this.activity = "thinking";
  }

  /** @param {any} response @param {number} now @returns {Line | null} */
  _replyEnds(response, now) {
    this._holdEnds();
    this._running.delete(response.id);
    // Calls of functions are not said: other clients of the session may carry them out.
    const item = response.output?.find((/** @type {any} */ one) => one.type !== "function_call");
    const line = item ? this._line(item.id, "service") : null;
    const cancelled = response.status === "cancelled";
    const pressed = response.status_details?.reason === "client_cancelled";
    const failed = response.status === "failed";
    if (line && (cancelled || failed)) this._cut(line, textOf(item), item.cut_word ?? "", failed ? "failed" : "cut");
    else if (line) this._said(line, textOf(item), now);
    const current = this._reply?.id === response.id ? this._reply : null;
    if (line && !line.text && !line.discarded && !failed) this.lines = this.lines.filter((other) => other !== line);
    if (cancelled && current) {
      if (current.heard) this._stopping = { line, since: this._stopAskedAt(pressed, now) };
      this._reply = null;
      this.activity = "interrupted";
    } else if (failed || (this.activity === "thinking" && !spoken(response))) {
      this.activity = this._rest();
    }
    return line?.text ? line : null;
  }

  /** When a cancelled reply was asked to fall silent. @param {boolean} pressed @param {number} now */
  _stopAskedAt(pressed, now) {
    if (pressed) return this._pressedAt || now;
    return this._callerSpeaks ? this._onsetAt : now;
  }

  /** @param {any} event */
  _drained(event) {
    const line = this._undrained.get(event.response_id);
    if (line) line.figures.drain = event.lag_ms;
    this._undrained.delete(event.response_id);
  }

  /** The reply goes on, or is over. */
  _holdEnds() {
    this._heldAt = null;
    if (this.activity === "held") this.activity = "speaking";
  }

  /** @returns {Activity} */
  _rest() {
    return this._callerSpeaks ? "hearing" : "listening";
  }
}

/** @param {any} item */
function textOf(item) {
  const part = item.content?.[0];
  return (part?.transcript ?? part?.text ?? "").trim();
}

/** @param {any} response */
function spoken(response) {
  return response.output_modalities?.includes("audio") ?? true;
}
