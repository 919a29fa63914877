// What test_hydrate.py has a browser do with hydrate.js, the page's client and a running sidecar; it judges nothing.

import { connect } from "/console/client.js";
import {
  applySnapshot,
  canClear,
  clearHistory,
  createLocal,
  hydrate,
  reattach,
  rebuild,
  restoreDismissedSession,
} from "/console/hydrate.js";

const clientOf = (token, fetch = globalThis.fetch.bind(globalThis)) => connect({ base: location.origin, token, fetch });

/** A fetch that notes its requests, and fails those whose target ends with one of `failing`. */
function watched({ failing = [] } = {}) {
  const seen = { requests: [], atOnce: 0, most: 0 };
  seen.fetch = async (url, request) => {
    const target = url.pathname + url.search;
    seen.requests.push(`${request.method} ${target}`);
    if (failing.some((each) => target.endsWith(each))) throw new TypeError("the network is down");
    const answer = fetch(url, request);
    if (!target.includes("/turns")) return answer;
    seen.most = Math.max(seen.most, (seen.atOnce += 1));
    return answer.finally(() => (seen.atOnce -= 1));
  };
  return seen;
}

/** A fetch whose answers to targets that hold `text` wait for `release`; `arrived` is the first of them. */
function held(text) {
  const gate = {};
  const released = new Promise((resolve) => (gate.release = resolve));
  gate.arrived = new Promise((resolve) => {
    gate.fetch = async (url, request) => {
      const answer = await fetch(url, request);
      if (url.pathname.includes(text)) {
        resolve();
        await released;
      }
      return answer;
    };
  });
  return gate;
}

const told = ({ restored, failed, index }) => ({
  restored: restored.map(({ id }) => id),
  failed: failed.map(({ session_id, error }) => [session_id, error.code ?? error.name]),
  index: index.map(({ session_id }) => session_id),
});

export async function boot({ token, sessions = [], options = {}, network = {} }) {
  const local = createLocal(localStorage);
  for (const session of sessions) local.set(session);
  const seen = watched(network);
  const result = await hydrate({ client: clientOf(token, seen.fetch), local, ...options });
  return { ...told(result), requests: seen.requests, most: seen.most, all: local.all() };
}

let begun;

/** Boots with an older server, which ignores `parked`; the newest index is not asked for before `finish`. */
export async function begin({ token, options }) {
  let answered;
  const parked = new Promise((resolve) => (answered = resolve));
  const newest = new Promise((resolve) => (begun = { release: resolve }));
  const fetch = async (url, request) => {
    const isParked = url.searchParams.has("parked");
    url.searchParams.delete("parked");
    if (url.pathname.endsWith("/sessions") && !isParked) await newest;
    const answer = await globalThis.fetch(url, request);
    if (isParked) answered();
    return answer;
  };
  begun.running = hydrate({ client: clientOf(token, fetch), local: createLocal(null), ...options });
  await parked;
}

export async function finish() {
  begun.release();
  return told(await begun.running);
}

export async function transcript({ token, id }) {
  const { turns } = await clientOf(token).turns(id, { limit: 200, order: "created" });
  return rebuild(turns);
}

export async function summary({ token, id }) {
  return clientOf(token).summary(id);
}

const EDITS = {
  nothing: () => undefined,
  delete: (local, id) => local.delete(id),
  clear: (local, id) => local.edit(id, { messages: [] }),
  rename: (local, id) => local.edit(id, { title: "Mine" }),
  dismiss: (local, id) => local.dismiss(id),
  send: (local, id) => local.set({ id, messages: [{ id: "m", role: "user", text: "Mine" }] }),
  "send and delete": (local, id) => {
    EDITS.send(local, id);
    local.delete(id);
  },
};

export async function editWhileRead({ token, id, edit, sessions, before = "nothing", options = {} }) {
  const local = createLocal(null);
  for (const session of sessions) local.set(session);
  EDITS[before](local, id);
  const gate = held("/turns");
  const running = hydrate({ client: clientOf(token, gate.fetch), local, ...options });
  await gate.arrived;
  EDITS[edit](local, id);
  const edited = local.get(id);
  gate.release();
  const { restored, failed } = await running;
  return { restored: restored.length, failed: failed.length, kept: edited === local.get(id), here: Boolean(edited) };
}

export async function retireWhileRead({ token, id }) {
  const local = createLocal(null);
  const gate = held("/sessions");
  const running = hydrate({ client: clientOf(token, gate.fetch), local });
  await gate.arrived;
  await clientOf(token).retire(id);
  gate.release();
  return { ...told(await running), all: local.all() };
}

/** An answer that arrives after the abort, as the client has not passed the signal on. */
export async function abortWhileRead({ token }) {
  const local = createLocal(null);
  const gate = held("/turns");
  const stop = new AbortController();
  const client = clientOf(token, gate.fetch);
  const deaf = { ...client, turns: (id, { signal, ...query }) => client.turns(id, query) };
  const running = hydrate({ client: deaf, local, signal: stop.signal }).catch(({ name }) => name);
  await gate.arrived;
  stop.abort();
  gate.release();
  return [await running, local.all()];
}

export async function dismissAndBoot({ token, id }) {
  createLocal(localStorage).dismiss(id);
  return boot({ token });
}

export function dismissInTabs({ ids }) {
  const tabs = ids.map(() => createLocal(localStorage));
  ids.forEach((id, place) => tabs[place].dismiss(id));
  return ids.map((id) => createLocal(localStorage).isDismissed(id));
}

export async function restoreDismissed({ token, id, failing = [] }) {
  const local = createLocal(localStorage);
  const restoring = restoreDismissedSession(id, { client: clientOf(token, watched({ failing }).fetch), local });
  const session = await restoring.catch(({ code }) => code);
  return { session, isDismissed: createLocal(localStorage).isDismissed(id) };
}

export function stored({ items = {}, sessions = [] }) {
  for (const [key, text] of Object.entries(items)) localStorage.setItem(key, text);
  const local = createLocal(localStorage);
  for (const session of sessions) local.set(session);
  return { here: local.all().map(({ id }) => id), keys: Object.keys(localStorage).sort() };
}

export function outgrow({ id }) {
  const local = createLocal(localStorage);
  local.set({ id, messages: [{ id: "m", text: "short" }] });
  local.edit(id, { messages: [{ id: "m", text: "x".repeat(6_000_000) }] });
  const afterReload = createLocal(localStorage).get(id);
  local.edit(id, { messages: [] });
  return [local.get(id), afterReload, createLocal(localStorage).get(id)];
}

export function refused({ id }) {
  const refusing = new Proxy({}, { get: () => () => { throw new DOMException("no", "SecurityError"); } });
  return [null, refusing].map((storage) => {
    const local = createLocal(storage);
    local.dismiss("chat-other");
    local.edit(local.set({ id, messages: [] }).id, { title: "Mine" });
    return [local.get(id).title, local.isDismissed("chat-other")];
  });
}

export function editInPlace({ id }) {
  const local = createLocal(null);
  const first = local.set({ id, messages: [] });
  try {
    first.title = "Mine";
  } catch ({ name }) {
    return [name, local.edit(id, {}) === first];
  }
  return "edited";
}

export function mayClear({ cases }) {
  return cases.map(([session, row]) => canClear(session ?? undefined, row ?? undefined));
}

export async function clear({ token, id, session }) {
  const local = createLocal(null);
  if (session) local.set(session);
  const seen = watched();
  const outcome = await clearHistory(id, { client: clientOf(token, seen.fetch), local }).catch((error) => error);
  return { outcome: outcome.code ?? outcome.name ?? outcome, requests: seen.requests, session: local.get(id) ?? null };
}

export async function clearWhileRead({ token, id }) {
  const local = createLocal(null);
  const gate = held("/turns");
  const client = clientOf(token, gate.fetch);
  const running = hydrate({ client, local });
  await gate.arrived;
  await clearHistory(id, { client, local });
  gate.release();
  await running;
  return local.all();
}

async function* frames(tasks, fails) {
  yield* tasks;
  if (fails) throw new Error("the stream broke");
}

/** Hydrates a session and follows its task by subscriptions, each a list of snapshots; all but the last break. */
export async function follow({ token, id, subscriptions, remove = false }) {
  const local = createLocal(null);
  await hydrate({ client: clientOf(token), local });
  const hydrated = local.get(id);
  let rejected = 0;
  for (const [place, tasks] of subscriptions.entries()) {
    const breaks = place < subscriptions.length - 1;
    const following = reattach(id, frames(tasks, breaks), local);
    if (remove) local.delete(id);
    await following.catch(() => (rejected += 1));
  }
  return { hydrated, session: local.get(id) ?? null, rejected };
}

export function snapshots({ session, tasks }) {
  return tasks.reduce((session, task) => applySnapshot(session, task), session);
}

export function rebuilt({ turns }) {
  return rebuild(turns);
}
