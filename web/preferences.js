/** What the caller has chosen, kept by the browser where it lets us. Never a token. */

const KEY = "duplex.preferences";
/** As many as the field takes; what is stored may come from anywhere. */
const CHARACTERS_MAX = 8_000;
/** Those that the settings offer. */
const SPEEDS = ["0.8", "1", "1.2"];

/**
 * @typedef {object} Preferences
 * @property {string} instructions
 * @property {string} voice "" for the service's usual one
 * @property {string} speed one of `SPEEDS`
 * @property {string} microphone id of a device, "" for the system's choice
 * @property {string} speaker likewise
 * @property {boolean} figures the figures of each turn are shown
 * @property {boolean} reading screen readers are given the captions
 */

/** @type {Preferences} */
const DEFAULTS = {
  instructions: "",
  voice: "",
  speed: "1",
  microphone: "",
  speaker: "",
  figures: true,
  reading: false,
};

/** What is not stored, or not of its kind, has its default. @returns {Preferences} */
export function loadPreferences() {
  const stored = storedObject();
  const fitting = Object.entries(DEFAULTS).filter(([name, usual]) => fits(name, stored[name], usual));
  return { ...DEFAULTS, ...Object.fromEntries(fitting.map(([name]) => [name, stored[name]])) };
}

/** @returns {Record<string, unknown>} */
function storedObject() {
  try {
    return { ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return {}; // storage is blocked, or holds something else
  }
}

/** @param {string} name @param {unknown} value @param {unknown} usual */
function fits(name, value, usual) {
  if (typeof value !== typeof usual) return false;
  if (typeof value !== "string") return true;
  return name === "speed" ? SPEEDS.includes(value) : value.length <= CHARACTERS_MAX;
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
