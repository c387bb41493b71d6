/**
 * A voice call with the service over WebRTC, for any page: connect, talk, type, interrupt, come back.
 *
 * Theory of operation
 *   `DuplexClient` is one conversation; a `Link` (`duplex-link.js`) is one connection of it. The conversation stands
 *   once the service has said `session.created`. When a link breaks, the next one begins with `session.resume` and the
 *   token of the first, after a pause that grows and is never the same twice, a bounded number of times.
 *
 *   Typed messages and settings do not depend on the moment: what the service has not confirmed is sent again on the
 *   next link. A message has an id of ours, and the service refuses an id that it knows, so none is put in twice.
 *
 * Rules
 * - No access to the document, no sound output, no storage: the page owns those.
 * - Every wait and every retry has a named limit. A call ends in exactly one `closed` state, which says why.
 *
 * Usage
 *   const client = new DuplexClient({ session: { instructions: "Be brief." } });
 *   client.addEventListener("track", ({ detail }) => { audio.srcObject = detail.stream; audio.play(); });
 *   client.addEventListener("response.done", ({ detail }) => console.log(detail.response.status));
 *   client.addEventListener("state", ({ detail }) => console.log(detail.state, detail.error?.code));
 *   const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
 *   await client.connect(stream.getAudioTracks()[0]);
 */

import { CallError, Link, asText, encoded, refusal } from "./duplex-link.js";

export { CallError };

/** From the offer to `session.created`: a service that takes longer is treated as away. */
const SETUP_MS_MAX = 15_000;
/** With the pauses below about half a minute: a gateway that is started again takes seconds. */
const RECONNECT_TRIES_MAX = 8;
const BACKOFF_MS_FIRST = 400;
const BACKOFF_MS_MAX = 8_000;
/** A service that wants to be left alone for longer is tried all the same. */
const RETRY_AFTER_S_MAX = 60;
/** What browsers put into one Opus packet unless the answer asks for another length. */
const PACKET_MS = 20;
const CAPABILITIES_MS_MAX = 5_000;
/** More than anybody types while a connection is restored. */
const TEXTS_WAITING_MAX = 32;
/** With its prefix well below the 32 characters that the Realtime API allows for an id. */
const ITEM_ID_BYTES = 12;

/**
 * @typedef {object} ClientOptions
 * @property {string} [baseUrl] where `/realtime/calls` is found; default `/v1` of the page's own host
 * @property {string | (() => string | Promise<string>)} [token] the service's, or a client secret. A secret is good for
 *   one connection, so give a function that fetches a new one each time: with a fixed secret nothing can be resumed
 * @property {boolean} [exchangeToken] trade the token for a client secret before each connection
 * @property {Record<string, unknown>} [session] the first `session.update`
 * @property {string} [model]
 * @property {boolean} [extensions] the service's extra events, which resuming and reports need; default true
 * @property {RTCIceServer[]} [iceServers] default none: the service is reachable itself
 * @property {() => number} [outputLatencyMs] how late the page's sound output is, for playback reports
 * @property {() => number} [random] 0 ≤ x < 1, spreads reconnections
 */

/**
 * The voices that a session can ask for, the usual one first; none where the service has no choice.
 * @param {string} [token]
 * @param {string} [baseUrl]
 * @returns {Promise<string[]>}
 */
export async function voicesOf(token = "", baseUrl = new URL("/v1", location.href).href) {
  const headers = token ? { Authorization: `Bearer ${token}` } : undefined;
  const response = await fetch(`${baseUrl}/capabilities`, {
    headers,
    signal: AbortSignal.timeout(CAPABILITIES_MS_MAX),
  });
  if (!response.ok) throw await refusal(response);
  return (await response.json()).voices;
}

/** @typedef {"idle" | "connecting" | "connected" | "reconnecting" | "closed"} CallState */

/**
 * Events: `state` `{state, error?, attempt?, retryInMs?}`; `track` `{stream}`, to be played, anew on each connection;
 * `event` for every message of the service, and the message's own type (`response.done`, …) with the message as detail.
 */
export class DuplexClient extends EventTarget {
  /** @param {ClientOptions} [options] */
  constructor(options = {}) {
    super();
    this.options = { extensions: true, iceServers: [], random: Math.random, ...options };
    /** @type {CallState} */
    this.state = "idle";
    /** @type {MediaStreamTrack | null} */
    this._microphone = null;
    /** @type {Link | null} */
    this._link = null;
    /** @type {string | null} */
    this._resumeToken = null;
    /** The session of that token. @type {string | null} */
    this._session = null;
    /** The greatest that the session was seen at: it goes on above that, also where the service has forgotten it. */
    this._epoch = 0;
    /** The conversation stands on the present link. */
    this._stands = false;
    /** Typed messages that the service has not confirmed, by item. @type {Map<string, string>} */
    this._unsent = new Map();
    /** A reply was asked for, and none has begun. */
    this._replyOwed = false;
    /** Changes of the session that the service has not confirmed. */
    this._updatesDue = 0;
    this._nextEventId = 1;
    /** Whoever began last; what an earlier one still does is void. */
    this._generation = 0;
    /** @type {(() => void) | null} */
    this._endPause = null;
  }

  /** A broken call can be taken up where it was left: `connect` resumes it. */
  get isResumable() {
    return this._resumeToken !== null;
  }

  /**
   * Open the call, or take it up again where it broke. Resolves once the conversation stands.
   * @param {MediaStreamTrack} microphone
   * @throws {CallError}
   */
  async connect(microphone) {
    this._microphone = microphone;
    const generation = ++this._generation;
    this._become("connecting");
    try {
      await this._open(generation);
    } catch (error) {
      const failure = asCallError(error);
      if (generation === this._generation) this._close(failure);
      throw failure;
    }
  }

  /**
   * Speak through another microphone from now on.
   * @param {MediaStreamTrack} track
   */
  async replaceMicrophone(track) {
    this._microphone = track;
    await this._link?.replaceMicrophone(track);
  }

  /**
   * Send one event. Returns its `event_id`, which an `error` names.
   * @param {string} type
   * @param {Record<string, unknown>} [fields]
   * @throws {CallError} `not_connected`, `message_too_large`
   */
  send(type, fields = {}) {
    const eventId = `page_${this._nextEventId++}`;
    if (!this._link) throw new CallError("not_connected", "there is no call");
    this._link.send({ type, event_id: eventId, ...fields });
    return eventId;
  }

  /**
   * Put in a typed message and ask for a reply: now, or once the conversation stands (again).
   * @param {string} text
   * @returns {string} the id of its item, which `conversation.item.added` names, or an `error` as its `event_id`
   * @throws {CallError} `not_connected` after the call, `message_too_large`, `too_many_waiting`
   */
  sendText(text) {
    if (this.state === "closed" && !this.isResumable) throw new CallError("not_connected", "the call is over");
    if (this._unsent.size >= TEXTS_WAITING_MAX) {
      throw new CallError("too_many_waiting", `at most ${TEXTS_WAITING_MAX} messages wait for a connection`);
    }
    const id = newItemId();
    encoded(creation(id, text));
    this._unsent.set(id, text);
    this._live?.send(creation(id, text));
    this.askForReply();
    return id;
  }

  /** Ask for a reply to what was said last: now, or once the conversation stands again. */
  askForReply() {
    this._replyOwed = true;
    this._live?.send({ type: "response.create" });
  }

  /**
   * Typed messages that no connection has carried yet. They are the caller's again and are not sent any more.
   * @returns {{ id: string, text: string }[]}
   */
  takeUnsent() {
    const texts = [...this._unsent].map(([id, text]) => ({ id, text }));
    this._unsent.clear();
    this._replyOwed = false;
    return texts;
  }

  /** Stop the reply: no more is made, and what was not yet sent is thrown away. Without a connection there is none. */
  interrupt() {
    this._live?.send({ type: "response.cancel" });
    this._live?.send({ type: "output_audio_buffer.clear" });
  }

  /**
   * Change the session: now, or once the conversation stands (again).
   * @param {Record<string, unknown>} session fields of the Realtime API's session, those to change
   */
  updateSession(session) {
    this.options.session = { ...this.options.session, ...session };
    this._updatesDue += 1;
    this._live?.send(updateOf(session));
  }

  /** Do not wait for the next try of a reconnection. */
  retryNow() {
    this._endPause?.();
  }

  /** End the call. Also for `pagehide`: the service is told even while the page goes away. */
  hangUp() {
    if (this.state === "closed" || this.state === "idle") return;
    this._generation += 1;
    this._resumeToken = null;
    this._link?.sayGoodbye();
    this._close(null);
  }

  /**
   * When, on the clock of `performance.now()`, sound left the microphone that the service calls `inputMs`
   * (`audio_start_ms`, `audio_end_ms`). Within a packet or two; null where the browser does not count packets.
   * @param {number} inputMs
   * @returns {Promise<number | null>}
   */
  async timeOfInput(inputMs) {
    const stats = await this._link?.sender?.getStats();
    for (const entry of stats?.values() ?? []) {
      if (entry.type === "outbound-rtp") {
        const sentMs = entry.packetsSent * PACKET_MS;
        return entry.timestamp - performance.timeOrigin - (sentMs - inputMs);
      }
    }
    return null;
  }

  // ---- one link after the other -------------------------------------------------------------------

  /** The link, where it can carry something for the conversation. */
  get _live() {
    return this._stands && this._link?.isOpen ? this._link : null;
  }

  /** @param {number} generation */
  async _open(generation) {
    if (!this._microphone) throw new CallError("not_connected", "there is no microphone track");
    const resumed = this._resumeToken ? this._session : null;
    const link = new Link(this.options, this._microphone, (event) => this._receive(link, event), resumed);
    this._link = link;
    this._stands = false;
    try {
      await withLimit(this._settle(link), SETUP_MS_MAX);
    } catch (error) {
      link.sayGoodbye();
      link.close();
      throw this._isSpent(error) ? tokenSpent(error) : error;
    }
    if (generation !== this._generation) {
      link.sayGoodbye();
      link.close();
      throw new CallError("not_connected", "the call was ended while it was being set up");
    }
    this._become("connected");
    link.lost.then((error) => this._reconnect(link, error));
  }

  /**
   * A fixed token that was good for the first connection and is not for this one.
   * @param {unknown} error
   * @returns {error is CallError}
   */
  _isSpent(error) {
    const isFixed = typeof this.options.token === "string" && !this.options.exchangeToken;
    return isFixed && this.isResumable && error instanceof CallError && error.code === "invalid_token";
  }

  /** @param {Link} link */
  async _settle(link) {
    const standing = link.ready(this._resumeToken ? "session.resumed" : "session.created");
    const stream = await link.open();
    this.dispatchEvent(new CustomEvent("track", { detail: { stream } }));
    if (this._resumeToken) link.send({ type: "session.resume", token: this._resumeToken, epoch: this._epoch });
    const failed = link.lost.then((error) => Promise.reject(error));
    failed.catch(() => {});
    await Promise.race([standing, failed]);
  }

  /**
   * @param {Link} broken
   * @param {CallError} error
   */
  async _reconnect(broken, error) {
    broken.close();
    if (broken !== this._link || this.state !== "connected") return;
    const generation = ++this._generation;
    let last = error;
    for (let attempt = 1; attempt <= RECONNECT_TRIES_MAX; attempt += 1) {
      if (last.isFinal || !this._resumeToken) break;
      const retryInMs = this._backoffMs(attempt, last.retryAfterS);
      this._become("reconnecting", { attempt, retryInMs, error: last });
      await this._pause(retryInMs);
      if (generation !== this._generation) return;
      try {
        await this._open(generation);
        return;
      } catch (failure) {
        if (generation !== this._generation) return;
        last = asCallError(failure);
      }
    }
    this._close(last.isFinal ? last : new CallError("connection_lost", last.message));
  }

  /**
   * Grows twofold up to a limit; between half of it and all of it, by chance, so that callers do not return as one.
   * @param {number} attempt from 1
   * @param {number | null} retryAfterS
   */
  _backoffMs(attempt, retryAfterS) {
    const ceiling = Math.min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST * 2 ** (attempt - 1));
    const asked = attempt === 1 ? 0 : Math.min(retryAfterS ?? 0, RETRY_AFTER_S_MAX) * 1000;
    return Math.max(asked, Math.round(ceiling * (0.5 + this.options.random() / 2)));
  }

  /** @param {number} ms */
  async _pause(ms) {
    await new Promise((resolve) => {
      const timer = setTimeout(() => resolve(undefined), ms);
      this._endPause = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
    this._endPause = null;
  }

  /** @param {CallError | null} error null: it was asked for */
  _close(error) {
    if (error?.code.startsWith("session_")) this._resumeToken = null;
    this._link?.close();
    this._link = null;
    this._endPause?.();
    this._become("closed", { error });
  }

  /**
   * @param {CallState} state
   * @param {Record<string, unknown>} [more]
   */
  _become(state, more = {}) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, ...more } }));
  }

  // ---- what the service says ----------------------------------------------------------------------

  /**
   * @param {Link} link
   * @param {any} event
   */
  _receive(link, event) {
    if (link !== this._link) return;
    if (event.type === "session.created" && this._resumeToken) return; // the session that resuming gives back
    this._note(link, event);
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
    this.dispatchEvent(new CustomEvent(event.type, { detail: event }));
  }

  /**
   * What an event tells of things that are on their way.
   * @param {Link} link
   * @param {any} event
   */
  _note(link, event) {
    this._epoch = Math.max(this._epoch, event.epoch ?? event.response?.epoch ?? 0);
    if (event.type === "session.created") this._begin(link, event);
    if (event.type === "session.resumed") this._goOn(link, event);
    if (event.type === "session.updated") this._updatesDue = Math.max(0, this._updatesDue - 1);
    if (event.type === "conversation.item.added") this._unsent.delete(event.item.id);
    if (event.type === "error") this._unsent.delete(event.error.event_id);
    if (event.type === "response.created") this._replyOwed = false;
  }

  /**
   * @param {Link} link
   * @param {any} created
   */
  _begin(link, created) {
    this._resumeToken = created.session.resume_token ?? null;
    this._session = created.session.id;
    this._epoch = 0;
    this._updatesDue = Object.keys(this.options.session ?? {}).length ? 1 : 0;
    this._catchUp(link);
  }

  /**
   * @param {Link} link
   * @param {any} resumed
   */
  _goOn(link, { items = [] }) {
    for (const { id } of items) this._unsent.delete(id);
    // A reply that had begun has left its own item behind.
    this._replyOwed &&= this._unsent.size > 0 || items.at(-1)?.role === "user";
    this._catchUp(link);
  }

  /** Say what waits. @param {Link} link */
  _catchUp(link) {
    this._stands = true;
    if (this._updatesDue) link.send(updateOf(this.options.session ?? {}));
    this._updatesDue = Math.min(1, this._updatesDue);
    for (const [id, text] of this._unsent) link.send(creation(id, text));
    if (this._replyOwed) this.askForReply();
  }
}

/** A random id, which the service takes over. */
function newItemId() {
  const bytes = [...crypto.getRandomValues(new Uint8Array(ITEM_ID_BYTES))];
  return `item_${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** The event has the id of its item, so that an error tells which text was refused. @param {string} id @param {string} text */
function creation(id, text) {
  const item = { id, type: "message", role: "user", content: [{ type: "input_text", text }] };
  return { type: "conversation.item.create", event_id: id, item };
}

/** @param {Record<string, unknown>} session */
function updateOf(session) {
  return { type: "session.update", session: { type: "realtime", ...session } };
}

/** @param {CallError} error */
function tokenSpent({ status }) {
  const reason = "the token was good for one connection; give a function as `token`, or set `exchangeToken`";
  return new CallError("token_spent", reason, { status });
}

/**
 * @template T
 * @param {Promise<T>} work
 * @param {number} ms
 * @returns {Promise<T>}
 */
async function withLimit(work, ms) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new CallError("setup_timeout", "the call was not set up in time")), ms);
  });
  try {
    return await Promise.race([work, /** @type {Promise<never>} */ (late)]);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {unknown} error */
function asCallError(error) {
  return error instanceof CallError ? error : new CallError("connection_lost", asText(error));
}
