// The console page: signs in, polls both indexes and the open session, and leads from one view to the other.

import { connect } from "./client.js";
import { confirmRetireMany } from "./dialogs.js";
import { element } from "./dom.js";
import { createLabels } from "./labels.js";
import { createList } from "./list.js";
import { createResults } from "./results.js";
import { createViewer } from "./viewer.js";
import { count, stateWords } from "./words.js";

const POLL_SECONDS = 4;
const RETRY_SECONDS = 8;
const NOTICE_MS = 6_000;
const READING_MS_PER_CHARACTER = 100;
const LINK = "#token=";
const REFUSED = [400, 401, 403];
const TOKEN_FORM = /^[\w.~+/-]+=*$/;
const TOKEN = "a2a-sidecar/token";
const THEME = "a2a-sidecar/theme";
const ROWS = 50;
const MOST_WAITING = 200;

const find = (id) => document.getElementById(id);

let noticeTimer = 0;

function notify(text) {
  find("notice").textContent = text;
  clearTimeout(noticeTimer);
  const shownFor = Math.max(NOTICE_MS, text.length * READING_MS_PER_CHARACTER);
  noticeTimer = setTimeout(() => (find("notice").textContent = ""), shownFor);
}

/** Live regions speak when their text is set: so it is set when it changes only. */
function say(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}

/** The console of one token, until the page is left. */
function start(client) {
  const gone = new Set();
  const older = { rows: [], next: null, isPaged: false };
  let newest = null;
  let parked = null;
  let timer = 0;
  let polled = 0;
  let readAt = null;
  let total = "";

  const labels = createLabels(client, () => list.redraw());
  const list = createList({ labels, onOpen: (id) => open(id), onRetire: retireMany });
  const results = createResults({ client, onOpen: open, onLeave: () => list.focus(viewer.openId()) });
  const viewer = createViewer({
    pane: find("viewer"),
    client,
    titleOf: labels.titleOf,
    notify,
    onClose: back,
    onDeleted: deleted,
  });

  async function poll() {
    clearTimeout(timer);
    const mine = ++polled;
    let seconds = POLL_SECONDS;
    try {
      const [ofAll, ofParked] = await Promise.all([
        client.sessions({ limit: ROWS, last: newest }),
        client.sessions({ parked: true, limit: MOST_WAITING, last: parked }),
      ]);
      // what was read before a deletion is not shown after it
      if (mine !== polled) return;
      if (older.isPaged) Object.assign(older, behind([...newest.sessions, ...older.rows], ofAll.sessions));
      [newest, parked, readAt] = [ofAll, ofParked, new Date()];
      if (!older.isPaged) older.next = newest.next;
      draw();
      await viewer.refresh();
      say("banner", "");
    } catch (error) {
      if (mine !== polled) return;
      if (error.status === 401) return location.reload();
      seconds = Math.max(RETRY_SECONDS, error.retryAfter ?? 0);
      say("banner", `${textOf(error).replace(/\.$/, "")}, retrying in ${seconds} s`);
      if (readAt) find("scope").textContent = `${total} sessions · as of ${readAt.toLocaleTimeString("en-GB")}`;
    }
    if (mine === polled && !document.hidden) timer = setTimeout(poll, seconds * 1_000);
  }

  function draw() {
    if (!newest) return;
    const isThere = (row) => !gone.has(row.session_id);
    const waiting = parked.sessions.filter(isThere);
    const waits = idsOf(waiting);
    const first = idsOf(newest.sessions);
    const all = [...newest.sessions, ...older.rows.filter((row) => !first.has(row.session_id))].filter(isThere);
    const recent = all.filter((row) => !waits.has(row.session_id));
    list.draw({ waiting, recent, hasMoreWaiting: parked.next !== null, openId: viewer.openId() });
    total = `${waiting.length + recent.length}${older.next ? "+" : ""}`;
    find("scope").textContent = `${total} sessions · up to date`;
    find("older").hidden = !older.next;
    find("empty").hidden = waiting.length + recent.length > 0;
    find("recent-heading").hidden = !recent.length;
    say("waiting-count", `${count(waiting.length, "session")} ${waiting.length === 1 ? "waits" : "wait"} for you`);
    document.title = waiting.length ? `(${waiting.length}) Sessions` : "Sessions";
  }

  async function open(id, turnId = null) {
    find("panes").dataset.open = "";
    try {
      const opening = viewer.open(id, turnId);
      list.redraw();
      await opening;
    } catch (error) {
      notify(textOf(error));
    }
    draw();
  }

  function back() {
    delete find("panes").dataset.open;
    if (results.isOpen()) results.focusHits();
    else list.focus(viewer.openId());
  }

  function deleted(id, wasRetired) {
    labels.forget(id);
    if (wasRetired) gone.add(id);
    const isOpen = viewer.openId() === id; // another may have been opened before the answer came
    if (isOpen) {
      viewer.close();
      delete find("panes").dataset.open;
      results.leave();
    }
    draw();
    if (isOpen) list.focus();
    poll();
  }

  async function retireMany(ids) {
    const running = ids.filter((id) => stateWords(labels.stateOf(id)).kind === "works").length;
    if (!(await confirmRetireMany(ids.length, running))) return;
    const refusals = [];
    for (const [at, id] of ids.entries()) {
      notify(`Retiring ${at + 1} of ${ids.length}`);
      await client.retire(id).then(() => gone.add(id), (error) => refusals.push(error.detail));
    }
    const done = ids.length - refusals.length;
    notify([`${count(done, "session")} retired`, ...new Set(refusals)].join(". "));
    if (gone.has(viewer.openId())) viewer.close();
    draw();
    list.focus();
    poll();
  }

  async function loadOlder() {
    find("older").onclick = null; // a page is asked for once
    try {
      const page = await client.sessions({ limit: ROWS, cursor: older.next });
      Object.assign(older, { rows: [...older.rows, ...page.sessions], next: page.next, isPaged: true });
      draw();
      list.focus(page.sessions[0]?.session_id);
    } catch (error) {
      notify(textOf(error));
    }
    find("older").onclick = loadOlder;
  }

  find("older").onclick = loadOlder;
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, dialog *");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      delete find("panes").dataset.open;
      results.focus();
    } else if (event.key === "Escape" && !find("confirm").open) {
      if (find("viewer").contains(event.target)) back();
      else results.leave();
    }
  });

  find("recent").replaceChildren(...Array.from({ length: 8 }, () => element("li", { className: "skeleton" })));
  poll();
}

/** The rows behind a new first page that ends at a row of theirs; else there may be others between, and none stays. */
function behind(rows, page) {
  const end = page.at(-1);
  const at = rows.findIndex((row) => row.session_id === end?.session_id && row.last_updated === end.last_updated);
  const first = idsOf(page);
  const rest = rows.slice(at + 1).filter((row) => !first.has(row.session_id));
  return at < 0 ? { rows: [], isPaged: false } : { rows: rest };
}

async function signIn(token) {
  find("submit").disabled = true;
  const { content: workspace } = document.querySelector("meta[name=workspace]");
  const client = connect({ base: new URL(".", document.baseURI), token, workspace });
  const refusal = TOKEN_FORM.test(token) ? await refusalOf(client) : "Token refused: no token has such characters";
  if (refusal) {
    sessionStorage.removeItem(TOKEN);
    showSignIn(refusal);
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  find("sign-in").hidden = true;
  find("panes").hidden = false;
  find("forget").hidden = false;
  start(client);
}

/** Why the sidecar does not take the client's token; "" where it does, or where it does not answer now. */
async function refusalOf(client) {
  const error = await client.sessions({ limit: 1 }).then(() => null, (problem) => problem);
  if (!REFUSED.includes(error?.status)) return "";
  return error.status === 401 ? "Token refused (401)" : textOf(error);
}

function showSignIn(refusal = "") {
  find("submit").disabled = false;
  find("sign-in").hidden = false;
  find("refused").textContent = refusal;
  find("token").select();
}

/** The token of a link `#token=…`, which no longer stands in the address afterwards. */
function takeToken() {
  if (!location.hash.startsWith(LINK)) return null;
  const token = location.hash.slice(LINK.length);
  history.replaceState(null, "", location.pathname + location.search);
  return token;
}

function textOf(error) {
  return error.detail ?? String(error);
}

function idsOf(rows) {
  return new Set(rows.map((row) => row.session_id));
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  find("theme").textContent = isDark ? "Light" : "Dark";
  find("theme").onclick = () => {
    localStorage.setItem(THEME, isDark ? "light" : "dark");
    useTheme(isDark ? "light" : "dark");
  };
}

useTheme(localStorage.getItem(THEME));
// a page that is loaded anew holds nothing that was read with the old token
find("forget").onclick = () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
};
addEventListener("hashchange", () => {
  const token = takeToken();
  if (token === null) return;
  sessionStorage.setItem(TOKEN, token);
  location.reload();
});
find("sign-in").onsubmit = (event) => {
  event.preventDefault();
  signIn(find("token").value.trim());
};
const token = takeToken() ?? sessionStorage.getItem(TOKEN);
if (token) signIn(token);
else showSignIn();
