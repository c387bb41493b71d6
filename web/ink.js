/**
 * How far the ear has come in the words of a reply, as the ink that shows it.
 *
 * Theory of operation
 *   The service tells where each word stands in the sound (`response.audio_timestamp.delta`), and answers each report
 *   of the page with the sample that the ear had reached, and the one up to which it sounds on without a gap
 *   (`playback.acknowledged`). Between two answers the ear moves on at the pace of the sound, and no further than that:
 *   ink is late by the way to the service and back, and never early.
 *
 *   Not every browser knows where the ear is, and not every service answers. Where no answer comes although a reply
 *   sounds, nothing is known, and text counts as heard when it comes.
 *
 * Rules
 * - No document, no clock: times are arguments, in ms of `performance.now()`.
 * - Ink never goes back. What was heard of a reply that was cut is the service's to say.
 */

/** A reply that is over is followed for so long: what was sent last is still on its way to the ear, as reports are. */
const INK_TAIL_MS = 600;
/** A voice that has told no words by then tells none: its text is shown as heard. */
const WORDLESS_MS_MAX = 1_000;
/** Of the text, between two words of the sound: more than a dash or a sign that is not spoken is another word's place. */
const UNSPOKEN_CHARACTERS_MAX = 16;
/** An answer that has not come by then does not come, as for the service a report. */
const UNANSWERED_MS_MAX = 2_000;

/** @typedef {{ text: string, start: number, end: number }} Word in samples from the start of the reply */

export class Ink {
  constructor() {
    /** @type {Word[]} */
    this._words = [];
    this._rate = 24_000;
    /** The last answer, and when it came. */
    this._played = 0;
    this._until = 0;
    this._at = 0;
    this._shown = 0;
    this._soundsAt = Infinity;
    this._isAnswered = false;
  }

  /** The reply begins to sound. @param {number} now */
  sounds(now) {
    this._soundsAt = now;
  }

  /** Nobody says where the ear is. @param {number} now */
  isBlind(now) {
    return !this._isAnswered && now - this._soundsAt > UNANSWERED_MS_MAX;
  }

  /** @param {any} event `response.audio_timestamp.delta` */
  word({ text, start_sample: start, samples }) {
    this._words.push({ text, start, end: start + samples });
  }

  /** @param {any} event `playback.acknowledged` @param {number} now */
  report({ played_samples: played, until_sample: until, sample_rate: rate }, now) {
    this._played = played;
    this._until = until;
    this._rate = rate;
    this._at = now;
    this._isAnswered = true;
  }

  /** The last word has been heard. @param {number} now */
  isThrough(now) {
    const last = this._words.at(-1);
    return last !== undefined && this._sample(now) >= last.end;
  }

  /**
   * How many characters were heard of `text`, the reply as far as it is known.
   * @param {string} text
   * @param {number} now
   */
  charactersOf(text, now) {
    const sample = this._sample(now);
    if (!this._words.length) return sample > (WORDLESS_MS_MAX / 1000) * this._rate ? text.length : 0;
    let heard = 0;
    for (const word of this._words) {
      if (word.start >= sample) break;
      const from = text.indexOf(word.text, heard);
      if (from < 0 || from - heard > UNSPOKEN_CHARACTERS_MAX) continue;
      const share = Math.min(1, (sample - word.start) / (word.end - word.start));
      heard = from + Math.floor(word.text.length * share);
    }
    return heard;
  }

  /** @param {number} now */
  _sample(now) {
    const moved = ((now - this._at) / 1000) * this._rate;
    this._shown = Math.max(this._shown, Math.min(this._until, this._played + moved));
    return this._shown;
  }
}

/** @typedef {{ text: string, heard: number | null }} Inked a line; `heard` characters of its text, null: all */
/** @typedef {{ ink: Ink, line: Inked, overAt: number | null }} Flow `overAt`: all of the reply was said by then */

/** The replies whose ink flows, by response. */
export class Inks {
  constructor() {
    /** @type {Map<string, Flow>} */
    this._flows = new Map();
    /** Nobody says where the ear is. */
    this._isBlind = false;
  }

  /** A spoken reply begins to be shown. @param {string} response @param {Inked} line */
  begin(response, line) {
    if (this._isBlind || this._flows.has(response)) return;
    line.heard = 0;
    this._flows.set(response, { ink: new Ink(), line, overAt: null });
  }

  /** @param {string} response @param {number} now */
  sounds(response, now) {
    this._flows.get(response)?.ink.sounds(now);
  }

  /** @param {any} event `response.audio_timestamp.delta` */
  word(event) {
    this._flows.get(event.response_id)?.ink.word(event);
  }

  /** @param {any} event `playback.acknowledged` @param {number} now */
  report(event, now) {
    this._isBlind = false;
    this._flows.get(event.response_id)?.ink.report(event, now);
  }

  /** All of a reply has been said, and will be heard. @param {Inked} line @param {number} now */
  finish(line, now) {
    for (const flow of this._flows.values()) if (flow.line === line) flow.overAt = now;
  }

  /** What was heard of a reply is known. @param {Inked} line */
  stop(line) {
    for (const [response, flow] of this._flows) if (flow.line === line) this._flows.delete(response);
    line.heard = null;
  }

  /** Let the ink flow. @param {number} now @returns {boolean} some has */
  follow(now) {
    let flowed = false;
    for (const { ink, line, overAt } of this._flows.values()) {
      const before = line.heard;
      this._isBlind ||= ink.isBlind(now);
      if (this._isBlind) this.stop(line);
      else if (overAt !== null && (ink.isThrough(now) || now - overAt >= INK_TAIL_MS)) this.stop(line);
      else line.heard = ink.charactersOf(line.text, now);
      flowed ||= line.heard !== before;
    }
    return flowed;
  }
}

/**
 * Where `heard`, which the service gives with single spaces between its words, ends in `text`.
 * @param {string} heard
 * @param {string} text
 * @returns {number} characters of `text`; -1 where it does not begin so
 */
export function endOf(heard, text) {
  let end = 0;
  for (const character of heard.replace(/\s+/g, "")) {
    while (/\s/.test(text[end] ?? "")) end += 1;
    if (!text.startsWith(character, end)) return -1;
    end += character.length;
  }
  return end;
}

/**
 * The end of the last word of `text` that lies within its first `heard` characters.
 * @param {string} text
 * @param {number} heard
 */
export function wholeWords(text, heard) {
  let end = Math.min(heard, text.length);
  if (/\S/.test(text[end] ?? "")) while (end > 0 && /\S/.test(text[end - 1])) end -= 1;
  return end;
}
