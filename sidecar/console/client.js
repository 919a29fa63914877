// Speaks the sidecar's HTTP interface with one token; it keeps no answer and touches no page.

/** The member of a turn that holds its JSON as the sidecar sent it: parsed and written again, 27.0 would be 27. */
export const STORED = Symbol("stored");

// the longest answers, over a slow line; a sidecar that hangs is one that cannot be reached
const PATIENCE_MS = 60_000;
// in `{"turns":[{`
const TURN_DEPTH = 3;

/**
 * An answer's parsed body with its validator and the cursor of the page behind it.
 * @typedef {Object} Answer
 * @property {string | null} etag
 * @property {string | null} next
 */

/** A refusal, or a sidecar that cannot be reached (status 0). */
export class Problem extends Error {
  /** @param {{code: string, status: number, detail: string, retryAfter?: number}} told */
  constructor({ code, status, detail, retryAfter = 0 }) {
    super(detail);
    Object.assign(this, { name: "Problem", code, status, detail, retryAfter });
  }
}

/**
 * A client of the sidecar at `base`. A read takes `last`, its previous answer, and returns that same object while
 * nothing has changed. Every method throws a Problem.
 * @param {{base: string | URL, token: string, workspace?: string, fetch?: typeof fetch}} options
 */
export function connect({ base, token, workspace = "default", fetch = globalThis.fetch.bind(globalThis) }) {
  const sessionsPath = "api/chat/sessions";
  const workspacePath = `agent_api/v1/workspaces/${encodeURIComponent(workspace)}`;

  async function ask(path, { method = "GET", query = {}, last = null, signal, parse = JSON.parse } = {}) {
    const headers = { Authorization: `Bearer ${token}`, ...(last?.etag && { "If-None-Match": last.etag }) };
    // no transcript is left in the browser's cache
    const request = { method, headers, cache: "no-store", credentials: "omit", redirect: "error" };
    const [response, text] = await answerTo(urlOf(path, query), request, signal).catch((error) => {
      if (signal?.aborted) throw error;
      throw new Problem({ code: "unreachable", status: 0, detail: "Can't reach the sidecar" });
    });
    if (response.status === 304 && last) return last;
    const body = parsed(text, parse);
    if (!response.ok || !body) throw refusal(response, body);
    return { ...body, etag: response.headers.get("ETag"), next: nextCursor(response.headers.get("Link")) };
  }

  /** The whole answer: one that breaks off is none. */
  async function answerTo(url, request, given) {
    const signal = AbortSignal.any([AbortSignal.timeout(PATIENCE_MS), ...(given ? [given] : [])]);
    const response = await fetch(url, { ...request, signal });
    return [response, await response.text()];
  }

  function urlOf(path, query = {}) {
    const url = new URL(path, base);
    for (const [name, value] of Object.entries(query)) if (value != null) url.searchParams.set(name, String(value));
    return url;
  }

  return {
    /** The session index, or with `parked` the sessions that wait. @returns {Promise<Answer & {sessions: object[]}>} */
    sessions: ({ parked, limit, cursor, last, signal } = {}) =>
      ask(sessionsPath, { query: { parked: parked || null, limit, cursor }, last, signal }),

    /** The newest turns, ascending, each with its STORED text. @returns {Promise<Answer & {turns: object[]}>} */
    turns: (id, { limit, cursor, order, last, signal } = {}) =>
      ask(`${sessionsPath}/${encodeURIComponent(id)}/turns`, {
        query: { limit, cursor, order },
        last,
        signal,
        parse: parseTurns,
      }),

    /** One session's row with `last_state` and `live_task_id`. */
    summary: (id, { last, signal } = {}) => ask(`${sessionsPath}/${encodeURIComponent(id)}`, { last, signal }),

    /** Retires the session, or with `retire: false` clears its history; `ifActive: "refuse"` leaves an active one. */
    retire: (id, { retire = true, ifActive } = {}) =>
      ask(`${sessionsPath}/${encodeURIComponent(id)}`, { method: "DELETE", query: { retire, if_active: ifActive } }),

    /** Turns and titles that hold every keyword. */
    search: (query, { after, limit, signal } = {}) =>
      ask(`${workspacePath}/conversation_search`, { query: { query, after, limit }, signal }),

    /** The window around a turn, or the newest one. */
    window: (id, { around, limit, signal } = {}) =>
      ask(`${workspacePath}/conversations/${encodeURIComponent(id)}/history`, {
        query: { around_turn_public_id: around, limit },
        signal,
      }),

    /** A command that reads a session's turns where the token stands in `$TOKEN`. */
    curl: (id) => {
      const url = urlOf(`${sessionsPath}/${encodeURIComponent(id)}/turns`).href.replaceAll("'", "%27");
      return `curl -s -H "Authorization: Bearer $TOKEN" '${url}'`;
    },
  };
}

function parsed(text, parse) {
  try {
    return parse(text);
  } catch {
    return null;
  }
}

function parseTurns(text) {
  const body = JSON.parse(text);
  const texts = textsAt(TURN_DEPTH, text);
  for (const turn of body.turns ?? []) turn[STORED] = texts.next().value;
  return body;
}

/** The text of each object and array that is nested so deep in a JSON text. */
function* textsAt(wanted, json) {
  let depth = 0;
  let start = 0;
  let isInString = false;
  for (const { 0: sign, index } of json.matchAll(/\\.|["[\]{}]/g)) {
    if (sign === '"') isInString = !isInString;
    else if (isInString) continue;
    else if (sign === "{" || sign === "[") {
      depth += 1;
      if (depth === wanted) start = index;
    } else {
      if (depth === wanted) yield json.slice(start, index + 1);
      depth -= 1;
    }
  }
}

function nextCursor(link) {
  const target = /<([^>]*)>; rel="next"/.exec(link ?? "")?.[1];
  return target ? new URL(target, "http://link.invalid").searchParams.get("cursor") : null;
}

function refusal(response, body) {
  return new Problem({
    code: body?.code ?? "no_problem_document",
    status: response.status,
    detail: body?.detail ?? `The answer was ${response.status} ${response.statusText} and not the sidecar's`,
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
  });
}
