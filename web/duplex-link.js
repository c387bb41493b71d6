/**
 * One connection with the service over WebRTC, from its offer to its end.
 *
 * Theory of operation
 *   A link makes an offer with one audio track and the data channel `oai-events`, posts it, and takes the answer; then
 *   messages are JSON texts over the channel. While a reply is being played, the service is told where the ear is: the
 *   RTP time of what was last handed to the output, how long ago that was, and how late the output is.
 *
 * Rules
 * - A link is lost exactly once, for one reason, and is never used again.
 * - A token is held in memory and sent in the `Authorization` header only.
 */

/** For one request; the service answers in milliseconds, a bad network in seconds. */
const ANSWER_MS_MAX = 10_000;
/** Candidates that come later than this are not worth waiting for; the peer learns them from our checks. */
const GATHER_MS_MAX = 2_000;
/** Without STUN or TURN all candidates are local and come in one burst; this long after the last, none follow. */
const GATHER_QUIET_MS = 20;
/** ICE says `disconnected` after a few lost checks, and often recovers by itself. */
const DISCONNECTED_MS_MAX = 2_000;
/** The service sends sound without a break, silence included: none for so long means that nobody is there. */
const MEDIA_SILENT_MS_MAX = 3_000;
const WATCH_EVERY_MS = 500;
/** Five packets: between two reports the service goes on from the last, and the page from its answer. */
const REPORT_EVERY_MS = 100;
/** What was sent last is still on its way to the ear when the service has stopped; reports go on for so long. */
const REPORT_TAIL_MS = 600;
/** A channel that has so much waiting is not helped by one more report. */
const REPORT_BACKLOG_BYTES_MAX = 16_384;
/** The service's limit for one message on the data channel. */
const MESSAGE_BYTES_MAX = 65_536;

/** What the service says before it hangs up although another connection may go on with the conversation. */
const INTERRUPTION_CODES = new Set(["service_shutdown", "slow_client", "store_unavailable", "store_full", "internal_error"]);
/** Refusals that no repetition changes. */
const FINAL_CODES = new Set([
  "missing_token",
  "invalid_token",
  "origin_not_allowed",
  "not_from_here",
  "session_not_allowed",
  "session_not_resumable",
  "session_unreadable",
  "session_replaced",
  "resume_outdated",
  "ended_by_operator",
  "session_deleted",
  "call_too_long",
  "idle",
]);

/**
 * What went wrong, by `code`: one that the service gave, or one of
 * `unreachable`, `setup_timeout`, `no_media_path`, `connection_lost`, `not_connected`, `message_too_large`,
 * `http_error`, `token_spent`, `too_many_waiting`.
 */
export class CallError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{ status?: number, retryAfterS?: number | null }} [more]
   */
  constructor(code, message, { status = 0, retryAfterS = null } = {}) {
    super(message);
    this.name = "CallError";
    this.code = code;
    /** HTTP status, 0 where there was no answer. */
    this.status = status;
    /** When another try may pass, in seconds; null: not said. */
    this.retryAfterS = retryAfterS;
  }

  /** No repetition changes it; somebody has to act first. */
  get isFinal() {
    return FINAL_CODES.has(this.code) || (this.status >= 400 && this.status < 500 && this.status !== 429);
  }
}

/** One connection, from its offer to its end. It is lost exactly once. */
export class Link {
  /**
   * @param {import("./duplex-client.js").DuplexClient["options"]} options
   * @param {MediaStreamTrack} microphone
   * @param {(event: any) => void} receive
   * @param {string | null} resume the session that is to be resumed: the service has room for it even where it is full
   */
  constructor(options, microphone, receive, resume = null) {
    this._options = options;
    this._resume = resume;
    this._microphone = microphone;
    this._receive = receive;
    this._peer = new RTCPeerConnection({ iceServers: options.iceServers, bundlePolicy: "max-bundle" });
    this._channel = this._peer.createDataChannel("oai-events");
    /** @type {RTCRtpSender | null} */
    this.sender = null;
    /** @type {RTCRtpReceiver | null} */
    this._receiver = null;
    /** @type {URL | null} */
    this._callUrl = null;
    /** @type {string | null} */
    this._bearer = null;
    this._isLeft = false;
    /** @type {Map<string, () => void>} */
    this._awaited = new Map();
    /** @type {ReturnType<typeof setInterval>[]} */
    this._timers = [];
    this._reportUntilMs = 0;
    /** How many packets of sound have come, and when that number was last another. */
    this._packets = 0;
    this._packetsAt = 0;
    /** Why the service is about to hang up. @type {CallError | null} */
    this._farewell = null;
    /** @type {(error: CallError) => void} */
    this.lose = () => {};
    /** @type {Promise<CallError>} */
    this.lost = new Promise((resolve) => {
      this.lose = resolve;
    });
  }

  /** Connect; resolves with the service's sound once the channel is open. */
  async open() {
    const transceiver = this._peer.addTransceiver(this._microphone, { direction: "sendrecv" });
    this.sender = transceiver.sender;
    this._receiver = transceiver.receiver;
    // A conversation wants its sound early rather than smooth.
    if ("jitterBufferTarget" in this._receiver) this._receiver.jitterBufferTarget = 0;
    this._listen();
    const opened = new Promise((resolve) => this._channel.addEventListener("open", resolve, { once: true }));
    await this._peer.setLocalDescription(await this._peer.createOffer());
    await gathered(this._peer, this._options.iceServers.length === 0);
    const offer = this._peer.localDescription?.sdp ?? "";
    await this._peer.setRemoteDescription({ type: "answer", sdp: await this._exchange(offer) });
    const failed = this.lost.then((error) => Promise.reject(error));
    failed.catch(() => {});
    await Promise.race([opened, failed]);
    this._packetsAt = performance.now();
    // Of other services nobody knows whether they send silence.
    if (this._options.extensions) this._timers.push(setInterval(() => this._watch(), WATCH_EVERY_MS));
    this._timers.push(setInterval(() => this._report(), REPORT_EVERY_MS));
    return new MediaStream([this._receiver.track]);
  }

  _listen() {
    this._peer.addEventListener("connectionstatechange", () => this._connectionChanged());
    this._channel.addEventListener("close", () => this._drop("the service closed the connection"));
    this._channel.addEventListener("message", ({ data }) => this._message(data));
  }

  /** @param {string} reason */
  _drop(reason) {
    this.lose(this._farewell ?? new CallError("connection_lost", reason));
  }

  _connectionChanged() {
    const state = this._peer.connectionState;
    if (state === "failed" && this._channel.readyState === "connecting") {
      this.lose(new CallError("no_media_path", "the answer came, but no path for sound was found"));
    } else if (state === "failed") {
      this._drop("the network path broke");
    } else if (state === "disconnected") {
      setTimeout(() => {
        if (this._peer.connectionState === "disconnected") this._drop("the network path broke");
      }, DISCONNECTED_MS_MAX);
    }
  }

  /** @param {string} offer SDP @returns {Promise<string>} the answer's */
  async _exchange(offer) {
    const base = `${this._options.baseUrl ?? new URL("/v1", location.href).href}/realtime`;
    const url = new URL(`${base}/calls`);
    if (this._options.extensions) url.searchParams.set("extensions", "1");
    if (this._options.model) url.searchParams.set("model", this._options.model);
    if (this._resume) url.searchParams.set("resume", this._resume);
    this._bearer = await this._authorise(base);
    const response = await post(url, offer, "application/sdp", this._bearer);
    const place = response.headers.get("Location");
    if (place) this._callUrl = new URL(place, url);
    if (this._isLeft) this.sayGoodbye();
    return response.text();
  }

  /** @param {string} base */
  async _authorise(base) {
    const { token, exchangeToken } = this._options;
    const bearer = (typeof token === "function" ? await token() : token) || null;
    if (!exchangeToken) return bearer;
    const response = await post(new URL(`${base}/client_secrets`), "{}", "application/json", bearer);
    return (await response.json()).value;
  }

  /** @param {unknown} data */
  _message(data) {
    if (typeof data !== "string") return;
    const event = JSON.parse(data);
    if (event.type === "error" && this._isFarewell(event.error)) return;
    if (event.type === "output_audio_buffer.started") this._reportUntilMs = Infinity;
    if (event.type === "output_audio_buffer.stopped" || event.type === "output_audio_buffer.cleared") {
      this._reportUntilMs = performance.now() + REPORT_TAIL_MS;
    }
    if (event.type === "input_audio_buffer.speech_started") this._report();
    this._receive(event);
    this._awaited.get(event.type)?.();
    this._awaited.delete(event.type);
  }

  /** @param {{ code: string, message: string }} error @returns {boolean} the service is about to hang up */
  _isFarewell({ code, message }) {
    if (!FINAL_CODES.has(code) && !INTERRUPTION_CODES.has(code)) return false;
    this._farewell = new CallError(code, message);
    if (this._awaited.size || FINAL_CODES.has(code)) this.lose(this._farewell);
    return true;
  }

  /** @param {string} type @returns {Promise<void>} once a message of this type has come */
  ready(type) {
    return new Promise((resolve) => this._awaited.set(type, resolve));
  }

  /** Messages can be sent. */
  get isOpen() {
    return this._channel.readyState === "open";
  }

  /** @param {Record<string, unknown>} event */
  send(event) {
    if (!this.isOpen) throw new CallError("not_connected", "the connection is not open");
    this._channel.send(encoded(event));
  }

  /** @param {MediaStreamTrack} track */
  async replaceMicrophone(track) {
    if (this._peer.signalingState !== "closed") await this.sender?.replaceTrack(track);
  }

  // ---- the ear ------------------------------------------------------------------------------------

  /** Nothing is known of a stream that nobody plays. */
  _ear() {
    const source = this._receiver?.getSynchronizationSources?.()[0];
    if (!source) return null;
    const ageMs = performance.timeOrigin + performance.now() - source.timestamp;
    return { rtpTimestamp: source.rtpTimestamp, ageMs: Math.max(0, ageMs) };
  }

  /** Counts packets, not what was played: a page that plays nothing wants to know as well. */
  async _watch() {
    const received = await packetsReceived(this._receiver);
    const now = performance.now();
    if (received !== this._packets) {
      this._packets = received;
      this._packetsAt = now;
    } else if (now - this._packetsAt > MEDIA_SILENT_MS_MAX) {
      this._drop("no more sound came");
    }
  }

  /** A browser that does not know the RTP time sends nothing: the service then estimates. */
  _report() {
    if (!this._options.extensions || performance.now() > this._reportUntilMs) return;
    if (!this.isOpen || this._channel.bufferedAmount > REPORT_BACKLOG_BYTES_MAX) return;
    const ear = this._ear();
    if (ear?.rtpTimestamp === undefined) return;
    this.send({
      type: "playback.ack",
      rtp_timestamp: ear.rtpTimestamp,
      age_ms: Math.round(ear.ageMs * 10) / 10,
      output_latency_ms: Math.round((this._options.outputLatencyMs?.() ?? 0) * 10) / 10,
    });
  }

  // ---- the end ------------------------------------------------------------------------------------

  /** Tell the service, once, that the caller has gone: at once, which reaches it even while the page is being left, or as
   * soon as the call has its place. */
  sayGoodbye() {
    this._isLeft = true;
    if (!this._callUrl) return;
    const headers = this._bearer ? { Authorization: `Bearer ${this._bearer}` } : undefined;
    fetch(`${this._callUrl}/hangup`, { method: "POST", keepalive: true, headers }).catch(() => {
      // The service notices by itself, later.
    });
    this._callUrl = null;
  }

  close() {
    this._timers.forEach(clearInterval);
    this._timers = [];
    this._peer.close();
    this.lose(new CallError("not_connected", "the call is over"));
  }
}

/**
 * @param {Record<string, unknown>} event
 * @returns {string} as it is sent
 * @throws {CallError} `message_too_large`
 */
export function encoded(event) {
  const text = JSON.stringify(event);
  if (new TextEncoder().encode(text).length <= MESSAGE_BYTES_MAX) return text;
  throw new CallError("message_too_large", `one message holds at most ${MESSAGE_BYTES_MAX} bytes`);
}

/**
 * @param {URL} url
 * @param {string} body
 * @param {string} type
 * @param {string | null} bearer
 */
async function post(url, body, type, bearer) {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": type };
  if (bearer) headers.Authorization = `Bearer ${bearer}`;
  let response;
  try {
    response = await fetch(url, { method: "POST", headers, body, signal: AbortSignal.timeout(ANSWER_MS_MAX) });
  } catch (error) {
    throw new CallError("unreachable", `the service does not answer: ${asText(error)}`);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** @param {Response} response */
export async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const asked = body.error?.retry_after_s ?? response.headers.get("Retry-After");
  const retryAfterS = asked === null || asked === undefined ? null : Number(asked);
  const text = body.error?.message ?? `the service answered with status ${response.status}`;
  return new CallError(body.error?.code ?? "http_error", text, { status: response.status, retryAfterS });
}

/**
 * Resolves when there is enough to be reached by: all candidates; or, where all are local, a burst of them.
 * @param {RTCPeerConnection} peer
 * @param {boolean} localOnly
 */
async function gathered(peer, localOnly) {
  if (peer.iceGatheringState === "complete") return;
  await new Promise((resolve) => {
    let quiet = setTimeout(() => resolve(undefined), GATHER_MS_MAX);
    peer.addEventListener("icegatheringstatechange", () => {
      if (peer.iceGatheringState === "complete") resolve(undefined);
    });
    peer.addEventListener("icecandidate", ({ candidate }) => {
      if (!candidate || !localOnly) return;
      clearTimeout(quiet);
      quiet = setTimeout(() => resolve(undefined), GATHER_QUIET_MS);
    });
  });
}

/** @param {RTCRtpReceiver | null} receiver */
async function packetsReceived(receiver) {
  const statistics = (await receiver?.getStats()) ?? new Map();
  return [...statistics.values()].find(({ type }) => type === "inbound-rtp")?.packetsReceived ?? 0;
}

/** @param {unknown} error */
export function asText(error) {
  return error instanceof Error ? error.message : String(error);
}
