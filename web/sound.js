/**
 * The sound of a call: what the caller speaks through, what is heard of the service, and how loud both are.
 *
 * Rules
 * - Sound is played by the audio element straight from the connection; meters only listen in.
 * - The microphone is open between `begin` and `close` only.
 */

import { Meter } from "./levels.js";
import { Microphone, silentTrack } from "./microphone.js";

/** Silence that ends a stretch of the service's sound, longer than a stop inside a word. */
export const REPLY_QUIET_MS = 120;
const CALLER_QUIET_MS = 200;

export class CallSound {
  /**
   * @param {HTMLAudioElement} element plays what is heard
   * @param {() => void} unplugged the microphone is gone
   */
  constructor(element, unplugged) {
    this._element = element;
    this._unplugged = unplugged;
    this._microphone = new Microphone();
    /** @type {AudioContext | null} */
    this._context = null;
    this._isMuted = false;
    /** The microphone that was asked for, "" for the system's choice. */
    this.deviceId = "";
    /** @type {Meter | null} */
    this.caller = null;
    /** @type {Meter | null} */
    this.service = null;
  }

  begin() {
    this._context = new AudioContext({ latencyHint: "interactive" });
  }

  close() {
    this._microphone.close();
    this.caller?.close();
    this.service?.close();
    this.caller = null;
    this.service = null;
    this._element.srcObject = null;
    this._context?.close();
    this._context = null;
  }

  /** How late the output is. */
  get outputLatencyMs() {
    return (this._context?.outputLatency ?? 0) * 1000;
  }

  // ---- the caller ---------------------------------------------------------------------------------

  get isMuted() {
    return this._isMuted;
  }

  set isMuted(muted) {
    this._isMuted = muted;
    if (this._microphone.track) this._microphone.track.enabled = !muted;
  }

  /** For a caller who types. @returns {MediaStreamTrack | null} null: not begun */
  silence() {
    return this._context && this._watch(this._microphone.use(silentTrack(this._context)));
  }

  /**
   * @param {string} deviceId "" for the system's choice
   * @returns {Promise<MediaStreamTrack | null>} null: overtaken by another request, or closed meanwhile
   * @throws {import("./microphone.js").DeviceError}
   */
  async open(deviceId) {
    this.deviceId = deviceId;
    const track = await this._microphone.open(deviceId);
    return track && this._watch(track);
  }

  /** @param {MediaStreamTrack} track */
  _watch(track) {
    track.enabled = !this._isMuted;
    track.addEventListener("ended", () => {
      if (track === this._microphone.track) this._unplugged();
    });
    this.caller?.close();
    this.caller = this._context && new Meter(this._context, new MediaStream([track]));
    return track;
  }

  // ---- the service --------------------------------------------------------------------------------

  /**
   * @param {MediaStream} stream anew after each reconnection
   * @param {string} speaker id of a device
   * @returns {Promise<boolean>} as of `resume`
   */
  async play(stream, speaker) {
    if (!this._context) return true;
    this.service?.close();
    this.service = new Meter(this._context, stream);
    this._element.srcObject = stream;
    this.speakThrough(speaker);
    return this.resume();
  }

  /** @returns {Promise<boolean>} false: the browser holds the sound back until the caller presses something */
  async resume() {
    this._context?.resume();
    try {
      await this._element.play();
      return true;
    } catch (error) {
      // Else a newer stream took its place, or the call ended.
      return !(error instanceof DOMException && error.name === "NotAllowedError");
    }
  }

  /** The browser lets a page choose where it is heard. */
  get hasSpeakers() {
    return "setSinkId" in this._element;
  }

  /** @param {string} speaker id of a device, "" for the system's choice */
  speakThrough(speaker) {
    if (!this.hasSpeakers || this._element.sinkId === speaker) return;
    this._element.setSinkId(speaker).catch(() => this._element.setSinkId("")); // it was unplugged since
  }

  /** Look at both meters. @param {number} now */
  read(now) {
    this.caller?.read(now, CALLER_QUIET_MS);
    this.service?.read(now, REPLY_QUIET_MS);
  }
}
