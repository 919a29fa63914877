/**
 * Passages of a sidecar's sessions, for a page or for Node: `connect`, then iterate what `search` gives.
 * It needs nothing but `fetch`, keeps nothing, and sends nothing before it is asked to.
 *
 * @typedef {object} Input what to look for; the client adds `workspaceId` where it is left out
 * @property {string} q a question or keywords, at most 16,000 characters
 * @property {string} [workspaceId]
 * @property {number} [limit] 1 to 100, 10 by default
 * @property {string} [documentId] only this session
 * @property {string} [runId] only this turn
 * @property {string} [filenameContains] only turns with such a file
 * @property {string} [tags] only turns in one of these states, separated by commas
 * @property {string} [mimeTypes] only turns with a file of one of these media types, separated by commas
 *
 * @typedef {object} Citation characters `start` to `end` (code points, not UTF-16 units) of a field's text
 * @property {string} session_id
 * @property {string} task_id
 * @property {"prompt" | "steers" | "content"} field
 * @property {number} position
 * @property {number} start
 * @property {number} end
 *
 * @typedef {object} Hit
 * @property {string} text plain text, never to be taken for HTML
 * @property {boolean} truncated
 * @property {string | null} title
 * @property {string} state
 * @property {string | null} time
 * @property {number} score
 * @property {Citation} citation
 *
 * @typedef {object} Usage
 * @property {"none" | "provider" | "estimate"} source
 * @property {string | null} model
 * @property {number} inputTokens
 * @property {number} outputTokens
 * @property {number} totalTokens
 *
 * @typedef {object} Answer
 * @property {Hit[]} results best first
 * @property {string | null} sessionId
 * @property {{indexed: number, pending: number, complete: boolean, checked: string}} availability
 * @property {Usage} usage
 *
 * @typedef {{ok: true, data: Answer} | {ok: false, error: {code: string, message: string, status: number}}} Item
 */

/** A refusal of the sidecar; `code` is stable, and `detail` says what to do next. */
export class SidecarError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string, detail?: string}} problem
   */
  constructor(status, { code = "unknown", detail = `The server answered ${status}.` }) {
    super(detail);
    this.name = "SidecarError";
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/**
 * One search, sent when it is first iterated or awaited, and never twice. Iterated, it gives the hits; awaited, also
 * afterwards, the whole answer.
 *
 * @implements {AsyncIterable<Hit>}
 * @implements {PromiseLike<Answer>}
 */
class Search {
  /** @type {() => Promise<Answer>} */
  #send;
  /** @type {Promise<Answer> | undefined} */
  #answer;

  /** @param {() => Promise<Answer>} send */
  constructor(send) {
    this.#send = send;
  }

  #once() {
    this.#answer ??= this.#send();
    return this.#answer;
  }

  async *[Symbol.asyncIterator]() {
    yield* (await this.#once()).results;
  }

  /** What `await` calls. */
  then(resolve, reject) {
    return this.#once().then(resolve, reject);
  }
}

/**
 * @param {object} to
 * @param {string} to.url the sidecar's address, with the path that it is mounted at
 * @param {string} to.token a token with the scope `search`
 * @param {string} to.workspaceId
 */
export function connect({ url, token, workspaceId }) {
  const root = url.replace(/\/+$/, "");

  async function post(path, body, signal) {
    const answer = await fetch(root + path, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    if (!answer.ok) {
      throw new SidecarError(answer.status, (await answer.json().catch(() => null)) ?? {});
    }
    return answer.json();
  }

  return {
    /**
     * @param {Input} input
     * @param {{signal?: AbortSignal}} [options]
     */
    search(input, { signal } = {}) {
      return new Search(() => post("/v1/search", { workspaceId, ...input }, signal));
    },

    /**
     * Up to 20 searches in one request; each item is an answer or an error, in the order of the inputs.
     *
     * @param {Input[]} inputs
     * @param {{concurrency?: number, signal?: AbortSignal}} [options]
     * @returns {Promise<Item[]>}
     */
    async searchMany(inputs, { concurrency, signal } = {}) {
      const queries = inputs.map((input) => ({ workspaceId, ...input }));
      return (await post("/v1/search/batch", { queries, concurrency }, signal)).results;
    },
  };
}
