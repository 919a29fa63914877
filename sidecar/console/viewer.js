// Shows one session's turns and follows them; it keeps nothing of a session that is no longer open.

import { confirmClear, confirmRetire } from "./dialogs.js";
import { button, element, keyed, linked, plain, transcript, visible } from "./dom.js";
import { canClear } from "./hydrate.js";
import { rebuild } from "./transcript.js";
import { choices, count, exact, fileWords, relative, span, stateWords, stepWords } from "./words.js";

const PAGE = 50;
const MOST = 200;
const TITLE_CHARACTERS = 80;

/**
 * @param {object} options
 * @param {HTMLElement} options.pane
 * @param {ReturnType<import("./client.js").connect>} options.client
 * @param {(id: string) => string} options.titleOf
 * @param {(text: string) => void} options.notify
 * @param {() => void} options.onClose  The user goes back to the list.
 * @param {(id: string, wasRetired: boolean) => void} options.onDeleted
 */
export function createViewer({ pane, client, titleOf, notify, onClose, onDeleted }) {
  /**
   * `earlier` is the cursor of the turns before those that are here, `last` the last answer about the newest ones.
   * @type {{id: string, turns: object[], earlier: string | null, hasPaged: boolean, last: object | null,
   *   reading: Promise<void> | null} | null}
   */
  let session = null;
  let parts = null;

  /** Opens a session at its newest turn, or at the turn that is named. */
  async function open(id, turnId) {
    const opened = { id, turns: [], earlier: null, hasPaged: false, last: null, reading: null };
    session = opened;
    parts = frame(id);
    parts.heading.focus({ preventScroll: true });
    await refresh();
    while (turnId && session === opened && !turnOf(turnId) && opened.earlier) await loadEarlier();
    const found = session === opened && turnId && turnOf(turnId);
    if (found) point(found);
  }

  /** Reads the open session's newest turns again; a read that is under way serves all who ask. */
  async function refresh() {
    const opened = session;
    if (!opened) return;
    opened.reading ??= read(opened).finally(() => (opened.reading = null));
    await opened.reading;
  }

  async function read(opened) {
    const page = await client.turns(opened.id, { limit: PAGE, order: "created", last: opened.last });
    if (session !== opened) return;
    opened.last = page;
    opened.turns = page.next ? [...before(opened.turns, page.turns), ...page.turns] : page.turns;
    if (!opened.hasPaged) opened.earlier = page.next;
    draw();
  }

  async function loadEarlier() {
    const opened = session;
    const page = await client.turns(opened.id, { limit: MOST, order: "created", cursor: opened.earlier });
    if (session !== opened) return;
    Object.assign(opened, { hasPaged: true, earlier: page.next });
    opened.turns = [...before(page.turns, opened.turns), ...opened.turns];
    const fromEnd = parts.turns.scrollHeight - parts.turns.scrollTop;
    draw();
    parts.turns.scrollTop = parts.turns.scrollHeight - fromEnd;
  }

  function close() {
    session = null;
    pane.replaceChildren(element("p", { className: "nothing" }, "Choose a session to read it."));
  }

  function frame(id) {
    const heading = element("h2", { tabIndex: -1, dir: "auto" }, visible(titleOf(id) || id));
    const about = element("span");
    const clear = button("Clear history", () => attempt(clearHistory), { className: "danger" });
    const retire = button("Retire", () => attempt(retireSession), { className: "danger" });
    const earlier = element("div", { className: "earlier" }, button("Earlier turns", () => attempt(loadEarlier)));
    const list = element("div");
    const scrolled = { className: "turns", role: "region", tabIndex: 0, "aria-label": "Turns" };
    const turns = element("div", scrolled, earlier, list);
    const question = element("aside", { className: "question", hidden: true, "aria-label": "The agent asks" });
    const header = element(
      "header",
      {},
      button("‹ Sessions", onClose, { className: "quiet back" }),
      element(
        "div",
        { className: "names" },
        heading,
        element(
          "p",
          { className: "about" },
          element("span", { className: "id" }, visible(id)),
          button("Copy id", () => copy(id), { className: "quiet" }),
          about,
        ),
      ),
      element(
        "div",
        { className: "actions" },
        button("Copy curl", () => copy(client.curl(id))),
        button("Export JSON", () => attempt(exportJson)),
        clear,
        retire,
      ),
    );
    pane.replaceChildren(header, turns, question);
    return { heading, about, clear, earlier, list, turns, question };
  }

  function draw() {
    const { id, turns, earlier } = session;
    const wasAtEnd = parts.turns.scrollHeight - parts.turns.scrollTop - parts.turns.clientHeight < 40;
    const isFirst = !parts.list.children.length;
    const whole = rebuild(turns);
    const firstWords = whole.messages.find(({ role }) => role === "user")?.text ?? "";
    parts.heading.replaceChildren(visible(titleOf(id) || firstWords.slice(0, TITLE_CHARACTERS) || id));
    parts.about.textContent = aboutTurns(turns, earlier);
    parts.earlier.hidden = !earlier;
    parts.clear.disabled = !canClear(whole);
    parts.clear.title = parts.clear.disabled ? "A turn waits or runs: cancel it first" : "";
    keyed(parts.list, turns, (turn) => turn.task_id, renderTurn);
    if (!turns.length) parts.list.replaceChildren(note("No turns: they were deleted, or the agent dropped them."));
    drawQuestion(whole.parked);
    if (isFirst || wasAtEnd) parts.turns.scrollTop = parts.turns.scrollHeight;
  }

  function drawQuestion(parked) {
    const { question } = parts;
    question.hidden = !parked;
    const source = JSON.stringify(parked);
    if (question.dataset.source === source) return;
    question.dataset.source = source;
    if (!parked) return;
    question.replaceChildren(
      element("h3", {}, `Waiting for your ${parked.state === "auth-required" ? "sign-in" : "answer"}`),
      transcript(parked.question || "The agent left no question.", "text"),
      element("p", { className: "choices" }, visible(choices(parked.form))),
      element("p", {}, "Answer in your console: this page only reads."),
    );
  }

  function turnOf(turnId) {
    return [...parts.list.children].find((each) => each.dataset.key === turnId);
  }

  function point(article) {
    article.classList.add("found");
    article.scrollIntoView({ block: "center" });
    article.focus({ preventScroll: true });
  }

  async function clearHistory() {
    const { id } = session;
    const { turn_count } = await client.summary(id);
    if (!(await confirmClear({ id, turns: turn_count }))) return;
    const { turns_deleted } = await client.retire(id, { retire: false, ifActive: "refuse" });
    notify(`Cleared: ${count(turns_deleted, "turn")} deleted`);
    onDeleted(id, false);
  }

  async function retireSession() {
    const { id } = session;
    const { turn_count, last_state } = await client.summary(id);
    const isRunning = stateWords(last_state).kind === "works";
    if (!(await confirmRetire({ id, turns: turn_count, isRunning }))) return;
    const { turns_deleted } = await client.retire(id);
    notify(`Retired: ${count(turns_deleted, "turn")} deleted, and the id is hidden for good`);
    onDeleted(id, true);
  }

  async function exportJson() {
    const { id } = session;
    const turns = [];
    let cursor = null;
    do {
      const page = await client.turns(id, { limit: MOST, order: "created", cursor });
      turns.unshift(...page.turns);
      cursor = page.next;
    } while (cursor);
    const file = new Blob([JSON.stringify({ session_id: id, turns }, null, 2)], { type: "application/json" });
    const href = URL.createObjectURL(file);
    element("a", { href, download: `${plain(id).replace(/[^\p{L}\p{N}._-]/gu, "_")}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      notify("Copied");
    } catch {
      notify(text); // no clipboard here (plain http): it can be selected
    }
  }

  async function attempt(action) {
    try {
      await action();
    } catch (error) {
      notify(error.detail ?? String(error));
    }
  }

  close();
  return { open, refresh, close, openId: () => session?.id ?? null };
}

/** Those of `turns` that stand before the first of `later` and are not among it. */
function before(turns, later) {
  const ids = new Set(later.map((turn) => turn.task_id));
  return turns.filter((turn) => !ids.has(turn.task_id));
}

function aboutTurns(turns, earlier) {
  const times = turns.map((turn) => turn.last_updated).filter(Boolean).sort();
  const number = `${turns.length}${earlier ? "+" : ""} turn${turns.length === 1 && !earlier ? "" : "s"}`;
  return times.length ? `${number} · ${span(times[0], times.at(-1))}` : number;
}

const articles = new WeakMap();

/** A turn as an article; its node stays, and what is opened in it, while the turn grows. */
function renderTurn(turn, old) {
  const article = old ?? turnFrame(turn);
  const drawn = articles.get(article);
  const { body, time, chip, raw } = drawn;
  time.textContent = relative(turn.last_updated);
  if (drawn.turn === turn) return article;
  drawn.turn = turn;
  const source = JSON.stringify(turn, null, 2);
  if (drawn.source === source) return article;
  drawn.source = source;
  const { word, kind } = stateWords(turn.state);
  Object.assign(chip, { textContent: word }).dataset.state = kind;
  Object.assign(time, { dateTime: turn.last_updated ?? "", title: exact(turn.last_updated) });
  keyed(body, blocksOf(turn, kind), (block) => block.key, (block, known) => block.render(known));
  raw.textContent = raw.hidden ? "" : source;
  return article;
}

function turnFrame(turn) {
  const body = element("div");
  const chip = element("span", { className: "chip" });
  const time = element("time");
  const raw = element("pre", { className: "raw", hidden: true, tabIndex: 0, "aria-label": "Stored JSON" });
  const toggle = button(
    "Raw",
    () => {
      raw.hidden = !raw.hidden;
      raw.textContent = raw.hidden ? "" : articles.get(article).source;
      toggle.setAttribute("aria-expanded", String(!raw.hidden));
    },
    { className: "quiet", "aria-expanded": "false", title: "The stored JSON of this turn" },
  );
  const id = element("span", { className: "id", title: "Task id" }, visible(turn.task_id));
  const line = element("footer", { className: "line" }, chip, time, id, toggle);
  const article = element("article", { className: "turn", tabIndex: -1 }, body, line, raw);
  articles.set(article, { body, chip, time, raw, turn: null, source: "" });
  return article;
}

/** What a turn shows, from top to bottom; a block keeps its key while the turn grows. */
function blocksOf(turn, kind) {
  const { messages } = rebuild([turn]);
  const blocks = messages.flatMap((message) => {
    if (message.role === "user") return [{ key: message.id, render: () => said(message) }];
    return workBlocks(message).map((block) => ({ ...block, key: `${message.id}/${block.key}` }));
  });
  if (kind !== "works") return blocks;
  return [...blocks, { key: "partial", render: () => note("Still running: this is a partial answer.") }];
}

function workBlocks({ steps, text, parts, question, reason, omitted }) {
  return [
    steps.length && { key: "steps", render: (known) => stepList(steps, known) },
    text && { key: "text", render: () => transcript(text, "answer") },
    parts.length && { key: "files", render: () => fileList(parts) },
    question?.text && { key: "question", render: () => transcript(question.text, "asked") },
    reason && { key: "reason", render: () => transcript(reason, "reason") },
    omitted.length && {
      key: "omitted",
      render: () => note(`Not shown: ${omitted.join(", ")}, which is too large or no valid JSON.`),
    },
  ].filter(Boolean);
}

function note(text) {
  return element("p", { className: "note" }, text);
}

function said({ text, parts, steer }) {
  return element(
    "div",
    { className: "said" },
    element("p", { className: "who" }, steer ? "You, meanwhile" : "You"),
    text ? transcript(text, "text") : null,
    parts.length ? fileList(parts) : null,
  );
}

function stepList(steps, known) {
  const details = known ?? element("details", { className: "steps" });
  const items = steps.map((step) => {
    const [name, detail] = stepWords(step);
    return element("li", { dir: "auto" }, element("b", {}, visible(name)), " ", linked(detail));
  });
  const summary = details.firstElementChild ?? element("summary");
  summary.textContent = count(steps.length, "step");
  details.replaceChildren(summary, element("ol", {}, ...items));
  return details;
}

function fileList(parts) {
  return element("ul", { className: "files", "aria-label": "Files" }, ...parts.map((part) => {
    const [name, size] = fileWords(part);
    return element("li", {}, visible(name), size && ` · ${size}`);
  }));
}
