/**
 * The settings: a dialog whose fields are the preferences. What is changed counts at once and is kept.
 *
 * Rules
 * - A choice that is offered late (devices, voices) shows what is preferred then, not when it was asked for.
 */

import { voicesOf } from "./duplex-client.js";
import { namedDevices } from "./microphone.js";
import { savePreferences } from "./preferences.js";
import { find } from "./view.js";

/** @typedef {import("./preferences.js").Preferences} Preferences */

const WRITTEN = /** @type {const} */ (["instructions", "voice", "speed", "microphone", "speaker"]);
const TICKED = /** @type {const} */ (["figures", "reading"]);

export class Settings {
  /**
   * @param {Preferences} preferences changed in place
   * @param {() => string} token of the service, which tells its voices to those who have it
   * @param {(name: keyof Preferences) => void} changed
   */
  constructor(preferences, token, changed) {
    this._preferences = preferences;
    this._token = token;
    this._changed = changed;
    this._dialog = find("settings", HTMLDialogElement);
  }

  /** @param {boolean} withSpeakers the browser lets a page choose where it is heard */
  begin(withSpeakers) {
    for (const name of WRITTEN) {
      const field = /** @type {HTMLInputElement} */ (find(name, HTMLElement));
      field.value = this._preferences[name];
      field.addEventListener("change", () => this._set(name, field.value));
    }
    for (const name of TICKED) {
      const box = find(name, HTMLInputElement);
      box.checked = this._preferences[name];
      box.addEventListener("change", () => this._set(name, box.checked));
    }
    find("speaker-field", HTMLElement).hidden = !withSpeakers;
    find("settings-open", HTMLButtonElement).addEventListener("click", () => this._open());
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.listDevices());
    this.listDevices();
  }

  get isOpen() {
    return this._dialog.open;
  }

  _open() {
    this.listDevices();
    this._listVoices();
    this._dialog.showModal();
  }

  /**
   * @template {keyof Preferences} Name
   * @param {Name} name
   * @param {Preferences[Name]} value
   */
  _set(name, value) {
    this._preferences[name] = value;
    savePreferences(this._preferences);
    this._changed(name);
  }

  async listDevices() {
    const { microphones, speakers } = await namedDevices();
    this._offer("microphone", [new Option("System default", ""), ...devices(microphones)]);
    this._offer("speaker", [new Option("System default", ""), ...devices(speakers)]);
  }

  /** Before the service has its token it tells nothing: then there is the usual voice, and what was chosen once. */
  async _listVoices() {
    const told = await voicesOf(this._token()).catch(() => null);
    const { voice } = this._preferences;
    const [usual = "", ...others] = told ?? (voice ? ["", voice] : []);
    const first = new Option(usual ? `${usual} (usual)` : "Default", "");
    this._offer("voice", [first, ...others.map((name) => new Option(name))]);
  }

  /** The first option stands for what was preferred and is gone. @param {"voice" | "microphone" | "speaker"} name
   * @param {HTMLOptionElement[]} options */
  _offer(name, options) {
    const field = find(name, HTMLSelectElement);
    const preferred = this._preferences[name];
    field.replaceChildren(...options);
    field.value = options.some(({ value }) => value === preferred) ? preferred : "";
  }
}

/** @param {MediaDeviceInfo[]} infos */
function devices(infos) {
  return infos.map((one) => new Option(one.label, one.deviceId));
}
