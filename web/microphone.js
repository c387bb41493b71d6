/**
 * The caller's microphone and the choice of devices.
 *
 * Rules
 * - What cannot be had is told as a `DeviceError` with a code that the page explains.
 * - A call without a microphone (the caller types) sends silence, so that its sound clock runs all the same.
 */

/** `insecure_page`, `unsupported_browser`, `microphone_refused`, `microphone_missing`, `microphone_busy`. */
export class DeviceError extends Error {
  /** @param {string} code @param {unknown} [cause] */
  constructor(code, cause) {
    super(code, { cause });
    this.name = "DeviceError";
    this.code = code;
  }
}

/** By name of the exception, W3C Media Capture, section 10.2. */
const CODES = new Map([
  ["NotAllowedError", "microphone_refused"],
  ["SecurityError", "microphone_refused"],
  ["NotFoundError", "microphone_missing"],
  ["OverconstrainedError", "microphone_missing"],
  ["NotReadableError", "microphone_busy"],
  ["AbortError", "microphone_busy"],
]);

/** Why no call can be made from here, or null. @returns {DeviceError | null} */
export function obstacle() {
  if (!window.isSecureContext) return new DeviceError("insecure_page");
  const usable = "RTCPeerConnection" in window && "AudioContext" in window && navigator.mediaDevices?.getUserMedia;
  return usable ? null : new DeviceError("unsupported_browser");
}

/**
 * What the caller speaks through, one track at a time. A browser may ask the caller first and take its time: whoever
 * asks last has the microphone, and a track that comes for an earlier request, or after `close`, is stopped at once.
 */
export class Microphone {
  constructor() {
    /** @type {MediaStreamTrack | null} */
    this.track = null;
    this._requests = 0;
  }

  /**
   * @param {string} deviceId "" for the system's choice
   * @returns {Promise<MediaStreamTrack | null>} null: overtaken, and nothing is to be done any more
   * @throws {DeviceError}
   */
  async open(deviceId) {
    const request = ++this._requests;
    const overtaken = () => request !== this._requests;
    try {
      const track = await openMicrophone(deviceId);
      if (!overtaken()) return this.use(track);
      track.stop();
    } catch (error) {
      if (!overtaken()) throw error;
    }
    return null;
  }

  /** @param {MediaStreamTrack} track takes the place of the present one */
  use(track) {
    this.close();
    this.track = track;
    return track;
  }

  close() {
    this._requests += 1;
    this.track?.stop();
    this.track = null;
  }
}

/**
 * @param {string} deviceId "" for the system's choice
 * @returns {Promise<MediaStreamTrack>}
 * @throws {DeviceError}
 */
async function openMicrophone(deviceId) {
  const wanted = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
  const audio = deviceId ? { ...wanted, deviceId: { exact: deviceId } } : wanted;
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    return stream.getAudioTracks()[0];
  } catch (error) {
    const name = error instanceof Error ? error.name : "";
    if (deviceId && name === "OverconstrainedError") return openMicrophone(""); // it was unplugged since
    throw new DeviceError(CODES.get(name) ?? "microphone_busy", error);
  }
}

/** @param {AudioContext} context @returns {MediaStreamTrack} silence without end */
export function silentTrack(context) {
  return context.createMediaStreamDestination().stream.getAudioTracks()[0];
}

/** Devices that have a name yet; before the first permission there are none. */
export async function namedDevices() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  /** @param {MediaDeviceKind} kind */
  const of = (kind) => devices.filter((one) => one.kind === kind && one.label && one.deviceId !== "default");
  return { microphones: of("audioinput"), speakers: of("audiooutput") };
}
