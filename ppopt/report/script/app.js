// The form of the app: every edit asks the server for the schedules and draws them.

import { FURTHER, part } from "./dom.js";

/** Milliseconds without an edit after which the schedules are drawn. */
const PAUSE = 60;
/** Key of the query that names the search whose schedule is drawn. */
const OPTIMUM = "optimum";
/** Said where the form is not valid. */
const FIRST = "correct the form first";

FURTHER.push((page) => new App(page).begin());

/** The form, and what it asks for. */
class App {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.form = /** @type {HTMLFormElement} */ (part("app"));
    /** @type {Record<string, Record<string, string>>} */
    this.examples = JSON.parse(part("examples").textContent ?? "{}");
    /** Name of the search whose schedule is drawn; empty: none. */
    this.optimum = "";
    /** @type {EventSource | null} */
    this.events = null;
    /** The search whose schedule was offered for download. */
    this.offered = "";
    this.command = "";
    /** Whether the schedules on the page are of other settings than the form's. */
    this.stale = false;
    this.timer = 0;
    /** How many edits were sent, and how many are drawn: tests wait for that. */
    this.asked = 0;
    this.drawn = 0;
  }

  begin() {
    globalThis.ppoptApp = this;
    this.fill(new URLSearchParams(location.search));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => {
      if (event.target === part("example")) this.start();
      else if (event.target !== part("of")) this.edited();
    });
    part("of").addEventListener("input", () => this.links());
    part("copy").addEventListener("click", () => this.copy());
    part("find").addEventListener("click", () => this.search());
    part("stop").addEventListener("click", () => this.stop());
    addEventListener("popstate", () => {
      this.fill(new URLSearchParams(location.search));
      this.draw();
    });
    this.draw();
  }

  /** The controls of the form that have a name. */
  fields() {
    const all = this.form.querySelectorAll("[name]");
    return /** @type {HTMLInputElement[]} */ ([...all]);
  }

  /** The boxes of the strategies. */
  boxes() {
    const all = this.form.querySelectorAll("input[type=checkbox]");
    return /** @type {HTMLInputElement[]} */ ([...all]);
  }

  /** Write a query into the form. @param {URLSearchParams} query */
  fill(query) {
    const given = query.get("strategies") ?? this.form.dataset.strategies ?? "";
    const empty = [...query.keys()].filter((key) => key !== "strategies").length === 0;
    const [first] = Object.values(this.examples);
    if (empty) { for (const [key, text] of Object.entries(first)) query.set(key, text); }
    for (const field of this.fields()) field.value = query.get(field.name) ?? "";
    const names = new Set(given.split(","));
    for (const box of this.boxes()) box.checked = names.has(box.value);
    for (const details of this.form.querySelectorAll("details")) {
      details.open ||= [...details.querySelectorAll("[name]")].some((field) =>
        /** @type {HTMLInputElement} */ (field).value !== ""
      );
    }
  }

  /** The query of the form: what is not empty. */
  query() {
    const query = new URLSearchParams();
    for (const { name, value } of this.fields()) if (value.trim()) query.set(name, value);
    const chosen = this.boxes().filter((box) => box.checked);
    query.set("strategies", chosen.map((box) => box.value).join(","));
    return query;
  }

  /** Fill in the example that is chosen. */
  start() {
    const select = /** @type {HTMLSelectElement} */ (part("example"));
    const example = this.examples[select.value];
    select.selectedIndex = 0;
    if (!example) return;
    this.fill(new URLSearchParams(example));
    this.edited();
  }

  edited() {
    clearTimeout(this.timer);
    this.asked += 1;
    this.timer = setTimeout(() => this.draw(), PAUSE);
  }

  /** Ask for the schedules of the form and draw them, unless a later edit came first. */
  async draw() {
    const turn = this.asked;
    const query = this.query();
    history.replaceState(null, "", `?${query}${location.hash}`);
    if (this.optimum) query.set(OPTIMUM, this.optimum);
    /** @type {Parts | {error: string, field: string}} */
    let answer;
    try {
      const response = await fetch(`draw?${query}`);
      answer = response.headers.get("content-type")?.startsWith("application/json")
        ? await response.json()
        : { error: await response.text(), field: "" };
    } catch {
      answer = { error: "the server does not answer: is `ppopt app` still running?", field: "" };
    }
    if (turn !== this.asked) return;
    this.mark("error" in answer ? answer : { error: "", field: "" });
    this.stale = "error" in answer;
    document.body.classList.toggle("stale", this.stale);
    part("stale").hidden = !this.stale;
    if (!("error" in answer)) this.show(answer);
    this.drawn = turn;
  }

  /** Say what is wrong at its field, or below the form. @param {{error: string, field: string}} fault */
  mark({ error, field }) {
    for (const other of this.form.querySelectorAll("[aria-invalid]")) {
      other.removeAttribute("aria-invalid");
    }
    for (const place of this.form.querySelectorAll(".error")) place.textContent = "";
    const control = field && part(`field-${field}`);
    part("app-message").textContent = control ? "" : error;
    if (!control) return;
    control.setAttribute("aria-invalid", "true");
    part(`error-${field}`).textContent = error;
    const details = control.closest("details");
    if (details) details.open = true;
  }

  /** @param {Parts} parts */
  show(parts) {
    part("opening").innerHTML = parts.above;
    part("kinds").innerHTML = parts.kinds;
    part("causes").innerHTML = parts.causes;
    part("layers").innerHTML = parts.layers;
    part("sections").innerHTML = parts.below;
    this.command = parts.command;
    for (const box of this.boxes()) {
      const reason = box.closest("label")?.querySelector(".reason");
      if (reason) reason.textContent = box.checked ? parts.skipped[box.value] ?? "" : "";
    }
    const select = /** @type {HTMLSelectElement} */ (part("of"));
    const before = select.value;
    select.replaceChildren(...parts.drawn.map((name) => new Option(name)));
    if (parts.drawn.includes(before)) select.value = before;
    if (this.offered !== this.optimum && parts.drawn.includes(OPTIMUM)) select.value = OPTIMUM;
    this.offered = this.optimum;
    if (this.optimum && !parts.drawn.includes(OPTIMUM)) {
      this.optimum = "";
      part("progress").textContent = "";
    }
    this.links();
    this.page.replace(JSON.parse(parts.data));
  }

  /** Where the files of what is drawn are. */
  links() {
    const query = this.query();
    if (this.optimum) query.set(OPTIMUM, this.optimum);
    query.set("of", /** @type {HTMLSelectElement} */ (part("of")).value);
    for (const link of this.form.querySelectorAll("a[data-file]")) {
      const anchor = /** @type {HTMLAnchorElement} */ (link);
      query.set("file", anchor.dataset.file ?? "");
      anchor.href = `download?${query}`;
    }
  }

  copy() {
    const said = part("progress");
    if (this.stale) {
      said.textContent = FIRST;
      return;
    }
    said.textContent = this.command;
    navigator.clipboard?.writeText(this.command).then(() => {
      said.textContent = `copied: ${this.command}`;
    }, () => {});
  }

  /** Search the best schedule; its value and bound appear as they improve. */
  search() {
    this.end();
    const said = part("progress");
    if (this.stale) {
      said.textContent = FIRST;
      return;
    }
    said.textContent = "searching";
    part("stop").hidden = false;
    let name = "";
    const events = new EventSource(`search?${this.query()}`);
    this.events = events;
    const on = (/** @type {string} */ kind, /** @type {(data: any) => void} */ react) =>
      events.addEventListener(kind, (event) => react(JSON.parse(event.data)));
    on("began", (data) => {
      name = data.name;
      part("stop").dataset.name = name;
    });
    on("progress", (data) => said.textContent = data.words);
    on("ended", (data) => {
      said.textContent = data.words;
      this.end();
      this.optimum = name;
      this.draw();
    });
    on("failed", (data) => {
      said.textContent = "";
      this.end();
      this.mark(data);
    });
    events.onerror = () => {
      if (this.events !== events) return;
      this.end();
      said.textContent = "the search did not begin, or the server went away";
    };
  }

  /** Let the search end with what it has. */
  async stop() {
    const name = part("stop").dataset.name;
    if (name) await fetch(`stop?name=${name}`, { method: "POST" }).catch(() => {});
  }

  /** Listen to no search any more: the server ends it. */
  end() {
    this.events?.close();
    this.events = null;
    part("stop").hidden = true;
    delete part("stop").dataset.name;
  }
}
