// Shows one session's turns and follows them; it keeps nothing of a session that is no longer open.

import { STORED } from "./client.js";
import { confirmClear, confirmRetire } from "./dialogs.js";
import { button, element, keyed, linked, transcript, update, visible } from "./dom.js";
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
   * @type {{id: string, turns: object[], earlier: string | null, last: object | null,
   *   reading: Promise<void> | null} | null}
   */
  let session = null;
  let parts = null;

  /** Opens a session at its newest turn, or at the turn that is named. */
  async function open(id, turnId) {
    const opened = { id, turns: [], earlier: null, last: null, reading: null };
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
    const kept = page.next ? before(opened.turns, page.turns) : [];
    opened.turns = [...kept, ...page.turns];
    if (!kept.length) opened.earlier = page.next;
    draw();
  }

  async function loadEarlier() {
    const opened = session;
    const page = await client.turns(opened.id, { limit: MOST, order: "created", cursor: opened.earlier });
    if (session !== opened) return;
    opened.earlier = page.next;
    const ids = idsOf(opened.turns);
    opened.turns = [...page.turns.filter((turn) => !ids.has(turn.task_id)), ...opened.turns];
    const fromEnd = parts.turns.scrollHeight - parts.turns.scrollTop;
    draw();
    parts.turns.scrollTop = parts.turns.scrollHeight - fromEnd;
    // the button that was pressed is gone with the last of them
    const { earlier, turns } = parts;
    if (earlier.hidden && earlier.contains(document.activeElement)) turns.focus({ preventScroll: true });
  }

  function close() {
    session = null;
    pane.replaceChildren(element("p", { className: "nothing" }, "Choose a session to read it."));
  }

  function frame(id) {
    const heading = element("h2", { tabIndex: -1, dir: "auto" }, visible(titleOf(id) || id));
    const about = element("span");
    // until it is known that nothing waits or runs
    const clear = button("Clear history", () => attempt(clearHistory), { className: "danger", disabled: true });
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
    update(parts.heading, visible(titleOf(id) || firstWords.slice(0, TITLE_CHARACTERS) || id));
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
      turns.unshift(...page.turns.map((turn) => turn[STORED]));
      cursor = page.next;
    } while (cursor);
    const json = `{"session_id":${JSON.stringify(id)},"turns":[\n${turns.join(",\n")}\n]}\n`;
    const file = new Blob([json], { type: "application/json" });
    const href = URL.createObjectURL(file);
    element("a", { href, download: `${id.replace(/[^\p{L}\p{N}._-]/gu, "_")}.json` }).click();
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

/** Those of `turns` that stand before the first of `later` and are not among it; none where it is not among them. */
function before(turns, later) {
  const ids = idsOf(later);
  const first = turns.findIndex((turn) => turn.task_id === later[0].task_id);
  return turns.slice(0, Math.max(first, 0)).filter((turn) => !ids.has(turn.task_id));
}

function idsOf(turns) {
  return new Set(turns.map((turn) => turn.task_id));
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
  const stored = drawn.turn?.[STORED];
  drawn.turn = turn;
  if (stored === turn[STORED]) return article;
  const { word, kind } = stateWords(turn.state);
  Object.assign(chip, { textContent: word }).dataset.state = kind;
  Object.assign(time, { dateTime: turn.last_updated ?? "", title: exact(turn.last_updated) });
  keyed(body, blocksOf(turn, kind), (block) => block.key, renderBlock);
  raw.textContent = raw.hidden ? "" : turn[STORED];
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
      raw.textContent = raw.hidden ? "" : articles.get(article).turn[STORED];
      toggle.setAttribute("aria-expanded", String(!raw.hidden));
    },
    { className: "quiet", "aria-expanded": "false", title: "The stored JSON of this turn" },
  );
  const id = element("span", { className: "id", title: "Task id" }, visible(turn.task_id));
  const line = element("footer", { className: "line" }, chip, time, id, toggle);
  const article = element("article", { className: "turn", tabIndex: -1 }, body, line, raw);
  articles.set(article, { body, chip, time, raw, turn: null });
  return article;
}

const sources = new WeakMap();

/** A part of a turn; its node stays as it is while what it shows does. */
function renderBlock({ shown, render }, known) {
  const source = JSON.stringify(shown);
  if (known && sources.get(known) === source) return known;
  const block = render(known);
  sources.set(block, source);
  return block;
}

/** What a turn shows, from top to bottom; a block keeps its key while the turn grows. */
function blocksOf(turn, kind) {
  const { messages } = rebuild([turn]);
  const blocks = messages.flatMap((message) => {
    if (message.role === "user") return [{ key: message.id, shown: message, render: () => said(message) }];
    return workBlocks(message).map((block) => ({ ...block, key: `${message.id}/${block.key}` }));
  });
  if (kind !== "works") return blocks;
  return [...blocks, noteBlock("partial", "Still running: this is a partial answer.")];
}

function workBlocks({ steps, text, parts, question, reason, omitted }) {
  return [
    steps.length && { key: "steps", shown: steps, render: (known) => stepList(steps, known) },
    text && { key: "text", shown: text, render: (known) => transcript(text, "answer", known) },
    parts.length && { key: "files", shown: parts, render: () => fileList(parts) },
    question?.text && { key: "question", shown: question.text, render: () => transcript(question.text, "asked") },
    reason && { key: "reason", shown: reason, render: () => transcript(reason, "reason") },
    omitted.length && noteBlock("omitted", `Not shown: ${omitted.join(", ")}, which is too large or no valid JSON.`),
  ].filter(Boolean);
}

function noteBlock(key, text) {
  return { key, shown: text, render: () => note(text) };
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
  if (!known) details.append(element("summary"), element("ol"));
  const [summary, list] = details.children;
  summary.textContent = count(steps.length, "step");
  const fresh = document.createDocumentFragment();
  fresh.append(...items);
  update(list, fresh);
  return details;
}

function fileList(parts) {
  return element("ul", { className: "files", "aria-label": "Files" }, ...parts.map((part) => {
    const [name, size] = fileWords(part);
    return element("li", {}, visible(name), size && ` · ${size}`);
  }));
}
