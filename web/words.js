/**
 * What goes on, in two lines: a word for the state, and what the caller can do.
 */

/** @typedef {import("./conversation.js").Activity} Activity */
/** @typedef {"idle" | "connecting" | "connected" | "reconnecting" | "closed"} Phase of the call */

/** @type {Record<Exclude<Phase, "connected">, [string, string]>} */
const PHASES = {
  idle: ["Ready", "Your microphone opens when you press the button."],
  connecting: ["Connecting", "Just a moment."],
  reconnecting: ["Reconnecting", "The connection broke. It is being restored."],
  closed: ["Call ended", "Press the button to talk again."],
};
/** @type {Record<Activity, [string, string]>} */
const ACTIVITIES = {
  listening: ["Listening", "Go ahead."],
  hearing: ["Hearing you", "Pause when you are done."],
  thinking: ["Thinking", "One moment."],
  held: ["Paused", "Speak on to interrupt."],
  speaking: ["Speaking", "Talk over it to interrupt."],
  interrupted: ["Interrupted", "Your turn."],
};

/**
 * @param {Phase} phase
 * @param {Activity} activity
 * @param {{ isSilent: boolean, isMuted: boolean, isResumable: boolean }} call isSilent: without a microphone
 * @returns {[state: string, hint: string]}
 */
export function stateWords(phase, activity, { isSilent, isMuted, isResumable }) {
  if (phase === "closed" && isResumable) return ["Disconnected", "Your conversation is kept. Reconnect to go on."];
  if (phase !== "connected") return PHASES[phase];
  if (activity === "speaking" && isSilent) return [ACTIVITIES.speaking[0], "Press Stop, or type, to interrupt."];
  if (activity !== "listening") return ACTIVITIES[activity];
  if (isSilent) return ["Connected", "Type a message, or use your microphone."];
  return isMuted ? ["Muted", "You are not heard until you unmute."] : ACTIVITIES.listening;
}
