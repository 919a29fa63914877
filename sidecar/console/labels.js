// Learns what sessions are about and how they stand, for the rows in view only; it draws nothing.

import { rebuild } from "./transcript.js";

const AT_A_TIME = 4;
const CHARACTERS = 80;

/**
 * The first words and the newest state of sessions. The index carries no transcript, so each session is asked once for
 * its first words, and again for its state when its row has changed.
 * @param {ReturnType<import("./client.js").connect>} client
 * @param {() => void} onLearned
 */
export function createLabels(client, onLearned) {
  const known = new Map();
  const queue = new Map();
  let running = 0;

  function want(row) {
    const { version } = known.get(row.session_id) ?? {};
    if (version === versionOf(row)) return;
    queue.set(row.session_id, row);
    while (running < AT_A_TIME && queue.size) work();
  }

  async function work() {
    running += 1;
    const [id, row] = queue.entries().next().value;
    queue.delete(id);
    const before = known.get(id);
    // kept before it is answered: a session that cannot be read is not asked about again until it changes
    known.set(id, { ...before, version: versionOf(row) });
    try {
      const title = before?.title || (await titleOf(id));
      const { last_state: state } = row.last_state ? row : await client.summary(id);
      known.set(id, { title, state, version: versionOf(row) });
      onLearned();
    } catch (error) {
      // the row shows its id; where the sidecar was not reached it is asked again
      if (!error.status) known.set(id, { ...before });
    }
    running -= 1;
    if (queue.size) work();
  }

  async function titleOf(id) {
    // null where the token may not search
    const window = await client.window(id, { limit: 1 }).catch(() => null);
    if (window?.conversation.title) return window.conversation.title;
    const { turns } = await client.turns(id, { limit: 1 });
    const text = rebuild(turns).messages.find((message) => message.role === "user")?.text ?? "";
    return text.trim().split("\n", 1)[0].slice(0, CHARACTERS);
  }

  return {
    want,
    forget: (id) => known.delete(id),
    titleOf: (id) => known.get(id)?.title ?? "",
    stateOf: (id) => known.get(id)?.state ?? "",
  };
}

function versionOf(row) {
  return `${row.last_updated} ${row.turn_count}`;
}
