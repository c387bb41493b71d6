/** The screen stays on during a call: phones switch it off, and with it the microphone. */

export class WakeLock {
  constructor() {
    this._isWanted = false;
    /** @type {WakeLockSentinel | null} */
    this._lock = null;
  }

  /** Also after the page was hidden, where the browser takes the lock away. */
  async hold() {
    this._isWanted = true;
    if (this._isHeld) return;
    try {
      const lock = await navigator.wakeLock?.request("screen");
      if (this._isWanted && !this._isHeld) this._lock = lock ?? null;
      else lock?.release(); // it came too late
    } catch {
      // Low battery, or the page is hidden.
    }
  }

  get _isHeld() {
    return this._lock !== null && !this._lock.released;
  }

  release() {
    this._isWanted = false;
    this._lock?.release();
    this._lock = null;
  }
}
