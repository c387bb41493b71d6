/**
 * How loud a stream is, and when it was: a tap that changes nothing of what is heard.
 *
 * Theory of operation
 *   An analyser keeps the last 40 ms of samples. Read more often than that, it misses none, and the time of a sample
 *   follows from its place in the buffer. The stream itself goes to the output by another way, untouched, so that the
 *   browser's echo cancellation knows it.
 */

const WINDOW_SAMPLES = 2_048;
/** To be read at least this often. */
export const READ_EVERY_MS = 20;
/** −46 dBFS: quieter than any speech, louder than what codecs make of silence. */
const AUDIBLE = 0.005;
/** −80 dBFS: what every microphone that is switched on exceeds by its own noise. */
const ALIVE = 1e-4;
const FLOOR_DB = -60;

export class Meter {
  /**
   * @param {AudioContext} context
   * @param {MediaStream} stream
   */
  constructor(context, stream) {
    this._rate = context.sampleRate;
    this._source = context.createMediaStreamSource(stream);
    this._analyser = new AnalyserNode(context, { fftSize: WINDOW_SAMPLES });
    this._source.connect(this._analyser);
    this._samples = new Float32Array(WINDOW_SAMPLES);
    this._readAt = -Infinity;
    this.madeAt = performance.now();
    /** Anything at all has come. */
    this.wasAlive = false;
    /** When it was last audible, ms of `performance.now()`. */
    this.audibleAt = -Infinity;
    /** When the present stretch of sound began. */
    this.onsetAt = -Infinity;
    /** 0 silent … 1 as loud as can be, on a scale of decibels. */
    this.level = 0;
  }

  /**
   * @param {number} now
   * @param {number} quietMs so much silence ends a stretch of sound
   */
  read(now, quietMs) {
    this._analyser.getFloatTimeDomainData(this._samples);
    const msPerSample = 1000 / this._rate;
    const fresh = Math.min(WINDOW_SAMPLES, Math.ceil((now - this._readAt) / msPerSample));
    let energy = 0;
    for (let index = WINDOW_SAMPLES - fresh; index < WINDOW_SAMPLES; index += 1) {
      const sample = Math.abs(this._samples[index]);
      energy += sample * sample;
      if (sample > ALIVE) this.wasAlive = true;
      if (sample > AUDIBLE) this._audible(now - (WINDOW_SAMPLES - 1 - index) * msPerSample, quietMs);
    }
    this._readAt = now;
    const decibels = 10 * Math.log10(energy / Math.max(1, fresh) + 1e-12);
    const level = Math.min(1, Math.max(0, 1 - decibels / FLOOR_DB));
    // Rises at once, falls slowly, as the eye likes it.
    this.level = Math.max(level, this.level * 0.88);
  }

  /** @param {number} at @param {number} quietMs */
  _audible(at, quietMs) {
    if (at - this.audibleAt > quietMs) this.onsetAt = at;
    this.audibleAt = Math.max(this.audibleAt, at);
  }

  close() {
    this._source.disconnect();
  }
}
