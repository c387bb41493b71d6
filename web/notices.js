/**
 * What can go wrong, in words: what it is, what to do, and the one action that helps.
 *
 * Rules
 * - Every code of `CallError` and `DeviceError` has its words here; what is unknown shows the service's own message.
 * - `action` is a name that the page knows, or none: `retry` the call, `restart` with a new conversation, ask for the
 *   `reply` again, open the `microphone`, take a `token`, `listen` to held back sound.
 */

/**
 * @typedef {object} Notice
 * @property {string} title
 * @property {string} text
 * @property {"retry" | "restart" | "reply" | "microphone" | "token" | "listen"} [action]
 * @property {string} [label] of the action
 * @property {number} [waitS] seconds until a new try makes sense
 */

/** @type {Record<string, Notice>} */
const NOTICES = {
  microphone_refused: {
    title: "Your microphone is blocked",
    text: "Allow it for this page in the address bar of your browser, then try again. You can also type below.",
    action: "microphone",
    label: "Try again",
  },
  microphone_missing: {
    title: "No microphone was found",
    text: "Plug one in or switch it on, then try again. You can also type below.",
    action: "microphone",
    label: "Try again",
  },
  microphone_busy: {
    title: "Your microphone cannot be opened",
    text: "Another program may hold it. Close that, or choose another microphone in the settings, then try again.",
    action: "microphone",
    label: "Try again",
  },
  microphone_silent: {
    title: "No sound comes from your microphone",
    text: "Check whether it is switched off, or choose another one in the settings.",
  },
  insecure_page: {
    title: "This page needs a secure address",
    text: "Browsers give the microphone only to addresses that begin with https://. Open this page that way.",
  },
  unsupported_browser: {
    title: "This browser cannot make voice calls",
    text: "Use a current version of Chrome, Edge, Firefox or Safari.",
  },
  missing_token: {
    title: "This service asks for a token",
    text: "Enter the access token that you were given. It is forgotten when you close the page.",
    action: "token",
    label: "Continue",
  },
  invalid_token: {
    title: "That token was not accepted",
    text: "Check it for missing characters, or ask who runs the service for a new one.",
    action: "token",
    label: "Continue",
  },
  origin_not_allowed: {
    title: "This page may not use the service",
    text: "Who runs the service must add this page's address to allowed_origins, or set a token.",
  },
  capacity_exceeded: {
    title: "All lines are busy",
    text: "The service is full just now.",
    action: "retry",
    label: "Try again",
    waitS: 15,
  },
  service_not_ready: {
    title: "The service is starting",
    text: "It cannot take calls yet.",
    action: "retry",
    label: "Try again",
    waitS: 15,
  },
  unreachable: {
    title: "The service does not answer",
    text: "Check your network connection. If that is fine, the service may be down.",
    action: "retry",
    label: "Try again",
  },
  setup_timeout: {
    title: "The call could not be set up",
    text: "The service did not answer in time. Try again in a moment.",
    action: "retry",
    label: "Try again",
  },
  no_media_path: {
    title: "Sound cannot reach the service",
    text: "Your network seems to block calls (UDP). Try another network, or ask who runs yours.",
    action: "retry",
    label: "Try again",
  },
  connection_lost: {
    title: "The connection was lost",
    text: "Your conversation is kept. Reconnect to go on where you were.",
    action: "retry",
    label: "Reconnect",
  },
  session_not_resumable: {
    title: "This conversation has expired",
    text: "It can no longer be continued. Its words are still here to be saved.",
    action: "restart",
    label: "Start a new one",
  },
  session_replaced: {
    title: "This conversation went on elsewhere",
    text: "It was opened in another window or on another device.",
    action: "restart",
    label: "Start a new one",
  },
  ended_by_operator: {
    title: "The call was ended",
    text: "Whoever runs this service has ended it. Your conversation is kept.",
    action: "retry",
    label: "Go on",
  },
  session_deleted: {
    title: "This conversation was deleted",
    text: "The service keeps nothing of it. Its words are still here to be saved.",
    action: "restart",
    label: "Start a new one",
  },
  idle: {
    title: "The call ended",
    text: "Nothing was said for a long time. Your conversation is kept.",
    action: "retry",
    label: "Go on",
  },
  call_too_long: {
    title: "The call ended",
    text: "It has lasted as long as one call may. Your conversation is kept.",
    action: "retry",
    label: "Go on",
  },
  token_spent: {
    title: "This page cannot reconnect by itself",
    text: "Its token was good for one connection. Load the page again.",
  },
  too_many_waiting: {
    title: "Too many messages wait to be sent",
    text: "They go out as soon as the connection is back.",
  },
  message_too_large: {
    title: "That message is too long",
    text: "Send it in parts.",
  },
  playback_blocked: {
    title: "Your browser holds back the sound",
    text: "It plays sound only after you have pressed something.",
    action: "listen",
    label: "Turn sound on",
  },
};

/** What helps without a new call. @type {Set<Notice["action"]>} */
const IN_CALL = new Set(["microphone", "listen"]);

NOTICES.session_unreadable = NOTICES.session_not_resumable;
NOTICES.resume_outdated = NOTICES.session_replaced;

/**
 * @typedef {object} Problem
 * @property {string} [code]
 * @property {string} [message]
 * @property {number | null} [retryAfterS]
 */

/** What kept the call from being made, or ended it. @param {Problem} error @returns {Notice} */
export function noticeOf(error) {
  const known = NOTICES[error.code ?? ""];
  if (known) return known.waitS ? { ...known, waitS: error.retryAfterS ?? known.waitS } : known;
  const title = error.retryAfterS ? "The service cannot take this call now" : "Something went wrong";
  const waitS = error.retryAfterS ?? undefined;
  return { title, text: sentence(error.message), action: "retry", label: "Try again", waitS };
}

/** What went wrong in a call that goes on: nothing is to be called again. @param {Problem} error @returns {Notice} */
export function noticeInCall(error) {
  const { title, text, action, label } = noticeOf(error);
  return IN_CALL.has(action) ? { title, text, action, label } : { title, text };
}

/** Why there is no reply. @param {Problem} error @returns {Notice} */
export function noticeOfReply(error) {
  return { title: "The reply failed", text: sentence(error.message), action: "reply", label: "Ask again" };
}

/** @param {string | undefined} message */
function sentence(message) {
  if (!message) return "Try again in a moment.";
  const text = message[0].toUpperCase() + message.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
