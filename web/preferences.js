/** What the caller has chosen, kept by the browser where it lets us. Never a token. */

const KEY = "duplex.preferences";

/** @typedef {Record<"instructions" | "voice" | "speed" | "microphone" | "speaker", string>} Preferences */

/** @type {Preferences} */
const DEFAULTS = { instructions: "", voice: "", speed: "1", microphone: "", speaker: "" };

/** @returns {Preferences} */
export function loadPreferences() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { ...DEFAULTS }; // storage is blocked, or holds something else
  }
}

/** @param {Preferences} preferences */
export function savePreferences(preferences) {
  try {
    localStorage.setItem(KEY, JSON.stringify(preferences));
  } catch {
    // They hold for this visit.
  }
}

/** The session that the service is asked for. @param {Preferences} preferences */
export function sessionOf(preferences) {
  return {
    instructions: preferences.instructions.trim(),
    audio: {
      input: { transcription: { model: "default" } },
      output: { voice: preferences.voice, speed: Number(preferences.speed) },
    },
  };
}
