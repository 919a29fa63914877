/**
 * Fills a console's local sessions from the sidecar's durable turns; it draws nothing and never overwrites local work.
 *
 *     const local = createLocal(localStorage);
 *     const { restored, failed, index } = await hydrate({ client, local });
 *
 * `local` stays the primary store: a session that has messages is never touched. Every edit replaces the object that
 * stands for a session, and what was read before an edit is dropped after it. So edit through `set`, `edit`, `delete`
 * and `dismiss`, also when the session is not here: `delete` after a retirement, for one.
 *
 * @typedef {import("./transcript.js").Rebuilt & {id: string, updated?: string|null, turn_count?: number,
 *   sending?: boolean}} Session   Frozen. A console adds members of its own, such as a title, and keeps `sending` true
 *   while a message is on its way that has no task yet. Where `turn_count` is more than `turns` it pages by itself.
 *
 * @typedef {{session_id: string, last_updated: string|null, turn_count: number, last_state?: string}} Row
 *
 * @typedef {object} Client   Whatever calls the routes; each call rejects when its answer is no success.
 * @property {(query: {limit: number, parked?: boolean, signal?: AbortSignal}) => Promise<{sessions: Row[]}>} sessions
 * @property {(id: string, query: {limit: number, order: "created", signal?: AbortSignal}) =>
 *   Promise<{turns: object[]}>} turns
 * @property {(id: string, query: {retire: boolean, ifActive: "refuse"}) => Promise<any>} retire
 */

import { applySnapshot, isActive, rebuild } from "./transcript.js";

export { MARKERS, applySnapshot, isActive, rebuild, stateName } from "./transcript.js";

const TURNS = 50;
const VERSION = 1;

/**
 * Reads both indexes and rebuilds what this browser lacks. Rejects only when `signal` is aborted.
 * @param {object} options
 * @param {Client} options.client
 * @param {ReturnType<typeof createLocal>} options.local
 * @param {number} [options.limit]        Sessions in the index.
 * @param {number} [options.pinned]       Of these at most so many that wait on the operator, though they are older.
 * @param {number} [options.concurrency]  Reads at a time.
 * @param {AbortSignal} [options.signal]
 * @returns {Promise<{restored: Session[], failed: {session_id: string|null, error: Error}[], index: Row[]}>}
 *   `failed` names no session where an index could not be read. `index` is newest first, without the sessions that were
 *   retired meanwhile.
 */
export async function hydrate({ client, local, limit = 50, pinned = 20, concurrency = 4, signal }) {
  const before = local.identities();
  const failed = [];
  const attempt = async (session_id, read) => {
    try {
      return await read();
    } catch (error) {
      failed.push({ session_id, error });
      return undefined;
    }
  };
  const rows = async (query) => {
    const answer = await attempt(null, () => client.sessions({ limit, ...query, signal }));
    return (answer?.sessions ?? []).filter((row) => !local.isDismissed(row.session_id));
  };
  const [newest, waiting] = await Promise.all([rows({}), rows({ parked: true })]);
  const index = choose(newest, waiting, limit, pinned);
  const outcomes = await mapBounded(index, concurrency, (row) => {
    if (signal?.aborted || !isEmpty(local.get(row.session_id))) return undefined;
    return attempt(row.session_id, () => restore({ client, local, signal }, row, before));
  });
  signal?.throwIfAborted();
  return {
    restored: outcomes.filter((outcome) => outcome && outcome !== GONE),
    failed,
    index: index.filter((row, place) => outcomes[place] !== GONE),
  };
}

/**
 * Opens a session that was dismissed: the dismissal ends first, whether or not the read that follows succeeds.
 * @param {string} id
 * @param {{client: Client, local: ReturnType<typeof createLocal>, signal?: AbortSignal}} options
 * @returns {Promise<Session|undefined>}  As it is here now; undefined when it is gone.
 */
export async function restoreDismissedSession(id, options) {
  const { local } = options;
  local.undismiss(id);
  if (isEmpty(local.get(id))) await restore(options, { session_id: id }, local.identities());
  return local.get(id);
}

/**
 * Follows a live task: nothing changes before the first snapshot comes, so what was rebuilt stays when none does.
 * @param {string} id
 * @param {AsyncIterable<object>} tasks  Full snapshots: Task frames of a subscription, answers of GetTask, or turns.
 * @param {ReturnType<typeof createLocal>} local
 */
export async function reattach(id, tasks, local) {
  for await (const task of tasks) {
    const session = local.get(id);
    if (!session) return;
    local.set(applySnapshot(session, task));
  }
}

/**
 * Whether the history may be cleared: not while a turn is known to wait or run, here or on the server.
 * @param {Session} [session]
 * @param {{last_state?: string, live_task_id?: string|null}} [row]  What the index or the summary says of it.
 */
export function canClear(session, row) {
  const states = [row?.last_state, ...(session?.turns ?? []).map(({ state }) => state)];
  return !session?.sending && !row?.live_task_id && !states.some(isActive);
}

/**
 * Clears a session's history, there and here; the id stays usable. Rejects where `canClear` or the server refuses.
 * @param {string} id
 * @param {{client: Client, local: ReturnType<typeof createLocal>}} options
 */
export async function clearHistory(id, { client, local }) {
  if (!canClear(local.get(id))) throw new Error("A turn of this session waits or runs: cancel it first.");
  const answer = await client.retire(id, { retire: false, ifActive: "refuse" });
  local.edit(id, { messages: [], turns: [], live: null, parked: null });
  return answer;
}

/**
 * The sessions of this browser, and the ids that were dismissed. A full or refusing storage leaves them in memory.
 * @param {Storage|null} storage
 * @param {string} [prefix]  Of the keys: one a session, `PREFIXsession/ID`, and one a dismissal, `PREFIXdismissed/ID`.
 */
export function createLocal(storage, prefix = "a2a-sidecar/") {
  const sessions = new Map();
  const absent = new Map();
  const key = (id) => `${prefix}session/${id}`;
  // a key each: a list would undo what another tab dismisses
  const dismissal = (id) => `${prefix}dismissed/${id}`;
  const dismissed = new Set(); // those that the storage did not take
  for (const name of keys(storage, key(""))) {
    const session = load(storage, name);
    if (name === key(session?.id)) sessions.set(session.id, Object.freeze(session));
  }

  const set = (session) => {
    sessions.set(session.id, Object.freeze(session));
    // an older state must not come back as if it were this one
    if (!save(storage, key(session.id), session)) drop(storage, key(session.id));
    return session;
  };
  const remove = (id) => {
    sessions.delete(id);
    absent.set(id, {});
    drop(storage, key(id));
  };

  return {
    /** @param {string} id @returns {Session|undefined} */
    get: (id) => sessions.get(id),
    /** @returns {Session[]} */
    all: () => [...sessions.values()],
    /** Puts a new object in the place of the session of its id. @param {Session} session @returns {Session} */
    set,
    /** Replaces the session by one with these members. @param {string} id @param {object} members */
    edit: (id, members) => (sessions.has(id) ? set({ ...sessions.get(id), ...members }) : void absent.set(id, {})),
    /** @param {string} id */
    delete: remove,
    /** What stands for each session now, be it here or deleted: another object after every edit. */
    identities: () => new Map([...absent, ...sessions]),
    /** Closes a session that goes on: it is not hydrated again. @param {string} id */
    dismiss: (id) => {
      remove(id);
      if (!save(storage, dismissal(id), true)) dismissed.add(id);
    },
    /** @param {string} id */
    undismiss: (id) => {
      dismissed.delete(id);
      drop(storage, dismissal(id));
    },
    /** @param {string} id */
    isDismissed: (id) => dismissed.has(id) || load(storage, dismissal(id)) === true,
  };
}

const GONE = Symbol("gone");

/** Rebuilds one session; GONE without turns, undefined when it was edited since `before`. */
async function restore({ client, local, signal }, row, before) {
  const id = row.session_id;
  const { turns } = await client.turns(id, { limit: TURNS, order: "created", signal });
  if (!turns.length) return GONE;
  if (signal?.aborted || local.identities().get(id) !== before.get(id)) return undefined;
  const { last_updated: updated, turn_count } = row;
  return local.set({ ...local.get(id), id, updated, turn_count, ...rebuild(turns) });
}

/** The newest sessions; those that wait and are older take the places of the oldest ones that do not wait. */
function choose(newest, waiting, limit, pinned) {
  // an older server ignores `parked`, and answers with the newest sessions
  const parked = new Map(waiting.filter((row) => row.last_state).map((row) => [row.session_id, row]));
  const pins = [...parked.values()].slice(0, Math.min(pinned, limit));
  const pinnedIds = new Set(pins.map((row) => row.session_id));
  const unpinned = newest.filter((row) => !pinnedIds.has(row.session_id)).slice(0, limit - pins.length);
  const kept = new Set([...unpinned, ...pins].map((row) => row.session_id));
  const recent = newest.filter((row) => kept.has(row.session_id)).map((row) => parked.get(row.session_id) ?? row);
  return [...recent, ...pins.filter((row) => !recent.includes(row))];
}

function isEmpty(session) {
  return !session?.messages?.length;
}

async function mapBounded(members, concurrency, work) {
  const outcomes = new Array(members.length);
  const queue = members.entries();
  const worker = async () => {
    for (const [place, member] of queue) outcomes[place] = await work(member);
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  return outcomes;
}

function keys(storage, prefix) {
  try {
    const names = Array.from({ length: storage.length }, (_, place) => storage.key(place));
    return names.filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}

/** What was saved under a key; undefined where there is nothing, or nothing that this version reads. */
function load(storage, key) {
  try {
    const { version, value } = JSON.parse(storage.getItem(key));
    return version === VERSION ? value : undefined;
  } catch {
    return undefined;
  }
}

function save(storage, key, value) {
  try {
    storage.setItem(key, JSON.stringify({ version: VERSION, value }));
    return true;
  } catch {
    return false;
  }
}

function drop(storage, key) {
  try {
    storage.removeItem(key);
  } catch {
    // no storage: memory is all there is
  }
}
