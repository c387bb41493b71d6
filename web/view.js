/**
 * Parts of the page that draw themselves: captions, notices, and what a screen reader is told.
 *
 * Rules
 * - Words of the service and of callers enter the document as text, never as markup.
 * - Captions change many times a second and are not live; a line is announced once, when it stands.
 */

import { wholeWords } from "./ink.js";

/** @typedef {import("./conversation.js").Line} Line */
/** @typedef {import("./notices.js").Notice} Notice */

/**
 * Make a change that may hide what has the focus, switch it off, move or remove it. The focus returns there, or goes to
 * `next` where it cannot.
 * @param {() => void} change
 * @param {HTMLElement} next
 */
export function keepFocus(change, next) {
  const focused = document.activeElement;
  change();
  if (!(focused instanceof HTMLElement) || focused === document.body) return;
  if (!canHaveFocus(focused)) next.focus();
  else if (document.activeElement !== focused) focused.focus();
}

/** @param {HTMLElement} part */
function canHaveFocus(part) {
  return part.isConnected && !part.matches(":disabled") && part.checkVisibility({ visibilityProperty: true });
}

/** This close to the end counts as reading along. */
const FOLLOW_PX = 80;
const ANNOUNCEMENTS_MAX = 6;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function find(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new TypeError(`the page has no ${kind.name} #${id}`);
  return found;
}

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {string} [text]
 */
function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export class Captions {
  /** @param {{ scroller: HTMLElement, list: HTMLElement, empty: HTMLElement, latest: HTMLElement }} parts */
  constructor(parts) {
    this._parts = parts;
    /** @type {Map<string, { item: HTMLElement, shown: string }>} */
    this._items = new Map();
    this._follows = true;
    this._due = false;
    parts.scroller.addEventListener("scroll", () => this._scrolled(), { passive: true });
    parts.latest.addEventListener("click", () => keepFocus(() => this._toEnd(), parts.scroller));
  }

  /** @param {readonly Line[]} lines */
  show(lines) {
    this._lines = lines;
    if (this._due) return;
    this._due = true;
    requestAnimationFrame(() => this._draw());
  }

  _draw() {
    this._due = false;
    const lines = this._lines ?? [];
    const present = new Set(lines.map((line) => line.id));
    for (const [id, { item }] of this._items) {
      if (present.has(id)) continue;
      item.remove();
      this._items.delete(id);
    }
    lines.forEach((line) => this._drawLine(line));
    this._parts.empty.hidden = lines.length > 0;
    if (this._follows) this._toEnd();
  }

  /** @param {Line} line */
  _drawLine(line) {
    const shown = JSON.stringify([line.text, line.heard, line.discarded, line.cutWord, line.status, line.figures]);
    const known = this._items.get(line.id);
    if (known?.shown === shown) return;
    const item = known?.item ?? element("li");
    item.className = `line ${line.speaker} ${line.status}`;
    item.replaceChildren(words(line));
    if (line.speaker !== "note") item.prepend(who(line));
    const figures = figuresOf(line);
    if (figures) item.append(figures);
    if (!known) this._parts.list.append(item);
    this._items.set(line.id, { item, shown });
  }

  _scrolled() {
    const { scroller, latest } = this._parts;
    this._follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < FOLLOW_PX;
    latest.hidden = this._follows;
  }

  _toEnd() {
    const { scroller, latest } = this._parts;
    scroller.scrollTop = scroller.scrollHeight;
    this._follows = true;
    latest.hidden = true;
  }
}

/** @param {Line} line */
function who(line) {
  const box = element("span", "who", line.speaker === "caller" ? "You" : "Duplex");
  if (line.status === "pending") box.append(element("span", "unsent", " · not sent yet"));
  return box;
}

/** Heard, yet to be heard, thrown away. @param {Line} line */
function words(line) {
  const heard = inked(line);
  const box = element("p", "words", line.text.slice(0, heard));
  if (heard < line.text.length) box.append(element("span", "unheard", line.text.slice(heard)));
  if (line.discarded) box.append(discarded(line));
  if (line.text || line.discarded) return box;
  const dots = element("span", "dots");
  dots.setAttribute("role", "img");
  dots.setAttribute("aria-label", line.speaker === "caller" ? "Listening" : "Thinking");
  dots.append(element("i"), element("i"), element("i"));
  box.append(dots);
  return box;
}

/** So many characters of a line are in ink. Where motion is unwelcome, words change whole. @param {Line} line */
function inked({ text, heard }) {
  if (heard === null) return text.length;
  return STILL.matches ? wholeWords(text, heard) : heard;
}

/** @param {Line} line */
function discarded({ discarded, cutWord }) {
  const rest = discarded.trimStart();
  const box = element("s", "discarded");
  const isCut = cutWord !== "" && rest.startsWith(cutWord);
  if (isCut) box.append(element("span", "cut-word", cutWord));
  box.append(isCut ? rest.slice(cutWord.length) : rest);
  const gap = discarded.slice(0, discarded.length - rest.length);
  const part = document.createDocumentFragment();
  part.append(gap, box);
  return part;
}

/** @param {Line} line */
function figuresOf(line) {
  const { firstAudio, stop, drain } = line.figures;
  const box = element("p", "figures");
  /** @param {string} className @param {string} text @param {string} meaning */
  const add = (className, text, meaning) => {
    const figure = element("span", className, text);
    figure.title = meaning;
    box.append(figure);
    return figure;
  };
  if (line.status === "cut") {
    const cut = add("was-cut", "Interrupted", "From the interruption to the last sound of the reply");
    if (stop !== undefined) cut.append(element("span", "figure", `, silent in ${ms(stop)}`));
  }
  if (line.status === "failed" && line.speaker === "service") add("was-cut", "Failed", "The reply could not be given");
  if (firstAudio !== undefined) {
    add(
      "figure first-audio",
      `First sound ${ms(firstAudio)}`,
      "From the end of your words to the first sound of the reply",
    );
  }
  if (drain !== undefined)
    add("figure drain", `Released +${ms(drain)}`, "From the end of the reply until all it held was given back");
  return box.childElementCount ? box : null;
}

/** @param {number} value */
function ms(value) {
  return value >= 9_950
    ? `${(value / 1000).toFixed(0)} s`
    : value >= 1_000
      ? `${(value / 1000).toFixed(1)} s`
      : `${Math.round(value)} ms`;
}

export class NoticeBox {
  /**
   * @param {HTMLElement} box
   * @param {HTMLElement} next has the focus after a notice that had it
   * @param {(action: NonNullable<Notice["action"]>, token: string) => void} act
   */
  constructor(box, next, act) {
    this._box = box;
    this._next = next;
    this._act = act;
    /** What the present notice offers. @type {Notice["action"]} */
    this.action = undefined;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._timer = undefined;
  }

  clear() {
    clearInterval(this._timer);
    this.action = undefined;
    const empty = () => {
      this._box.hidden = true;
      this._box.replaceChildren();
    };
    keepFocus(empty, this._next);
  }

  /**
   * @param {Notice} notice
   * @param {() => void} onWaited told once when `waitS` is over
   */
  show(notice, onWaited) {
    this.clear();
    this.action = notice.action;
    const text = element("p", "", notice.text);
    const column = element("div", "notice-words");
    column.append(element("strong", "", notice.title), text);
    const actions = element("div", "notice-actions");
    actions.append(this._actionOf(notice));
    this._box.append(column, actions);
    this._box.hidden = false;
    if (notice.waitS) this._count(notice.waitS, text, onWaited);
  }

  /** @param {Notice} notice */
  _actionOf(notice) {
    if (notice.action === "token") return this._tokenForm(notice);
    return notice.action ? this._button(notice) : this._dismiss();
  }

  /** @param {Notice} notice */
  _button(notice) {
    const button = element("button", "primary", notice.label);
    button.setAttribute("type", "button");
    button.addEventListener("click", () => this._act(notice.action ?? "retry", ""));
    return button;
  }

  _dismiss() {
    const button = element("button", "pill", "Dismiss");
    button.setAttribute("type", "button");
    button.addEventListener("click", () => this.clear());
    return button;
  }

  /** @param {Notice} notice */
  _tokenForm(notice) {
    const form = element("form");
    const field = /** @type {HTMLInputElement} */ (element("input"));
    Object.assign(field, { type: "password", autocomplete: "off", required: true, id: "token" });
    field.setAttribute("aria-label", "Access token");
    const button = element("button", "primary", notice.label);
    button.setAttribute("type", "submit");
    form.append(field, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._act("token", field.value.trim());
    });
    queueMicrotask(() => field.focus());
    return form;
  }

  /** @param {number} seconds @param {HTMLElement} text @param {() => void} onWaited */
  _count(seconds, text, onWaited) {
    const count = element("span", "count");
    text.append(" ", count);
    let left = Math.ceil(seconds);
    const draw = () => {
      count.textContent = left > 0 ? `Try again in ${left} s.` : "You can try again now.";
      if (left > 0) return;
      clearInterval(this._timer);
      onWaited();
    };
    draw();
    this._timer = setInterval(() => {
      left -= 1;
      draw();
    }, 1_000);
  }
}

export class Announcer {
  /** @param {HTMLElement} polite @param {HTMLElement} urgent live regions that nobody sees */
  constructor(polite, urgent) {
    this._polite = polite;
    this._urgent = urgent;
  }

  /** @param {string} text @param {boolean} [urgently] */
  say(text, urgently = false) {
    const region = urgently ? this._urgent : this._polite;
    region.append(element("p", "", text));
    while (region.childElementCount > ANNOUNCEMENTS_MAX) region.firstElementChild?.remove();
  }
}
