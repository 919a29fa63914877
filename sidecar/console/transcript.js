/**
 * Rebuilds what a chat shows from stored turns, in the spelling of either SDK; it fetches nothing and stores nothing.
 *
 * @typedef {object} Message   One bubble; it has something to show, or there is none.
 * @property {string} id       The wire's own id of what the operator said, else `TASK/said/N`; `TASK/steps/N` for work
 *   up to an interjection, and `TASK/answer` for the turn's last bubble.
 * @property {string} turn     Its task id.
 * @property {"user"|"assistant"} role
 * @property {true} [derived]  It was read from the wire: the next snapshot of its task replaces all that is named here.
 * @property {string} text     What the operator typed; or the whole answer, which only the turn's last bubble has.
 * @property {Part[]} parts    Attachments of the operator; files and data of the answer.
 * @property {boolean} [steer] Of a user: said after the prompt, while the turn ran or waited.
 * @property {Step[]} [steps]  Of an assistant: the work, in order.
 * @property {string} [state]  Of an assistant: the turn's state, as `stateName` spells it.
 * @property {Question|null} [question]  Of an assistant: what the turn waits for, or waited for when it was left.
 * @property {string} [reason]     Of an assistant: the last words of a turn that did not succeed.
 * @property {string[]} [omitted]  Of an assistant: cells that were too large or unreadable for the sidecar.
 *
 * @typedef {{type: "file", name: string, mediaType: string, url: string, size: number|null}
 *   | {type: "data", mediaType: string, data: any}} Part   A url is http(s) or empty; a payload is only its size.
 *
 * @typedef {Part | {type: "status", text: string} | {type: "reasoning", text: string} | {type: "question"} & Question
 *   | {type: "tool", id: string, name: string, phase: string, args: any, result: any, error: any}} Step
 *
 * @typedef {{text: string, form: any}} Question   The form is the data of the pause part, null without one.
 *
 * @typedef {object} Turn      What stays known of a turn beside its messages.
 * @property {string} id
 * @property {string} state
 * @property {boolean|null} incognito   As its newest operator message says; null when it has none.
 * @property {Question|null} question   What it waits for.
 *
 * @typedef {object} Rebuilt
 * @property {Message[]} messages
 * @property {Turn[]} turns
 * @property {boolean} incognito        As the newest operator message says.
 * @property {string|null} live         The unfinished task to reattach to, by the rule of the sidecar's `live_task_id`.
 * @property {{task: string, state: string, question: string, form: any}|null} parked   What the newest turn waits for.
 */

/** Media types of data parts, and keys of metadata, by what they mark; add those of other producers. */
export const MARKERS = {
  steers: new Set(["application/vnd.protolabs.steer-consumed-v1+json"]),
  reasoning: new Set(["application/vnd.protolabs.reasoning-v1+json"]),
  pauses: new Set(["application/vnd.protolabs.hitl-v1+json"]),
  toolCalls: new Set(["https://proto-labs.ai/a2a/ext/tool-call-v1"]),
};

const PARKED = new Set(["input-required", "auth-required"]);
const RUNNING = new Set(["submitted", "working"]);
const UNSUCCESSFUL = new Set(["failed", "canceled", "rejected"]);

/**
 * A state in one spelling: `input-required`, also for `TASK_STATE_INPUT_REQUIRED`; "" for none.
 * @param {unknown} state
 */
export function stateName(state) {
  return string(state).replace(/^TASK_STATE_/, "").toLowerCase().replaceAll("_", "-");
}

/**
 * Whether a turn in this state waits or runs.
 * @param {unknown} state  In any spelling.
 */
export function isActive(state) {
  return PARKED.has(stateName(state)) || RUNNING.has(stateName(state));
}

/**
 * The transcript of a session.
 * @param {object[]} turns  Of the turns route, oldest first.
 * @returns {Rebuilt}
 */
export function rebuild(turns) {
  const read = objects(turns).map(readTurn);
  return { messages: read.flatMap(({ messages }) => messages), ...overview(read.map(({ turn }) => turn)) };
}

/**
 * The session after an authoritative full snapshot of one of its tasks, as a new object. What an earlier reading of the
 * task has put there is replaced and not added to, so a snapshot that comes twice counts once. Bubbles of the console's
 * own stay where they are, and so do members that it has added to others; whether it is incognito the console knows.
 * @template {Partial<Rebuilt>} S
 * @param {S} session
 * @param {object} task  A Task of the agent, or a turn of the turns route.
 * @returns {S & Rebuilt}
 */
export function applySnapshot(session, task) {
  const { turn, messages } = readTurn(task);
  const before = objects(session.messages);
  const others = before.filter((message) => message.turn !== turn.id);
  const known = before.filter((message) => message.turn === turn.id);
  const place = known.length ? before.indexOf(known[0]) : before.length;
  const turns = objects(session.turns);
  const isNew = !turns.some(({ id }) => id === turn.id);
  const seen = overview(isNew ? [...turns, turn] : turns.map((each) => (each.id === turn.id ? turn : each)));
  return {
    ...session,
    ...seen,
    messages: others.toSpliced(place, 0, ...merge(known, messages)),
    incognito: session.incognito ?? seen.incognito,
  };
}

/** The fresh messages in the place of what they replace, between the console's own ones. */
function merge(known, fresh) {
  const byId = new Map(known.map((message) => [message.id, message]));
  const freshIds = new Set(fresh.map(({ id }) => id));
  const isOwn = ({ id, derived }) => !derived && !freshIds.has(id);
  const lead = known.findIndex((message) => !isOwn(message));
  const merged = fresh.map((message) => {
    const old = byId.get(message.id);
    return old && !old.derived ? old : { ...old, ...message };
  });
  if (lead < 0) return [...known, ...merged];
  return [...known.slice(0, lead), ...merged, ...known.slice(lead).filter(isOwn)];
}

function overview(turns) {
  const newest = turns.at(-1);
  const { text = "", form = null } = newest?.question ?? {};
  return {
    turns,
    incognito: turns.findLast(({ incognito }) => incognito !== null)?.incognito ?? false,
    live: liveTask(turns),
    parked: PARKED.has(newest?.state) ? { task: newest.id, state: newest.state, question: text, form } : null,
  };
}

function liveTask(turns) {
  const ended = turns.findLastIndex(({ state }) => state === "completed" || UNSUCCESSFUL.has(state));
  const open = turns.slice(ended + 1);
  const live = open.findLast(({ state }) => PARKED.has(state)) ?? open.find(({ state }) => RUNNING.has(state));
  return live?.id ?? null;
}

function readTurn(stored) {
  const id = string(stored.task_id ?? stored.id);
  const status = object(stored.status);
  const state = stateName(stored.state ?? status.state);
  // the status message enters the history with the next status only
  const current = objects([status.message]);
  const entries = [...objects(stored.history), ...current];
  const operator = entries.findLast((entry) => isOperator(entry) && !object(entry.metadata).origin);
  const answer = objects(stored.artifacts).flatMap((artifact) => objects(artifact.parts));
  const others = answer.filter((part) => !isText(part)).map(stepOf).filter(Boolean);
  const closing = PARKED.has(state) || UNSUCCESSFUL.has(state) ? current[0] : undefined;
  const asked = closing && PARKED.has(state) ? questionOf(closing) : null;
  const end = {
    text: textOf(answer),
    parts: others.filter(isPart),
    question: asked,
    reason: closing && !asked ? textOf(objects(closing.parts)) : "",
    omitted: strings(stored.omitted),
  };
  const work = others.filter((step) => !isPart(step)).map((step) => ({ step }));
  const timeline = paired([...items(entries, closing), ...work]);
  const incognito = operator ? Boolean(object(operator.metadata).incognito) : null;
  return { turn: { id, state, incognito, question: asked }, messages: bubbles(id, state, timeline, end) };
}

/** The bubbles of a turn: the work up to each interjection in one of its own, and how it ends on the last. */
function bubbles(turn, state, timeline, end) {
  const messages = [];
  const nothing = { text: "", parts: [], question: null, reason: "", omitted: [] };
  let steps = [];
  const addWork = (id, shown) => {
    if (steps.length || shown.text || shown.parts.length || shown.question || shown.reason || shown.omitted.length) {
      messages.push({ id, turn, role: "assistant", derived: true, state, steps, ...shown });
    }
    steps = [];
  };
  for (const [place, { step, said }] of timeline.entries()) {
    if (step) {
      steps.push(step);
    } else {
      addWork(`${turn}/steps/${place}`, nothing);
      messages.push({ ...said, id: said.id || `${turn}/said/${place}`, turn, role: "user", derived: true });
    }
  }
  addWork(`${turn}/answer`, end);
  return messages;
}

/** What was said and done, in order; each saying once, though a message may be stored twice or beside its marker. */
function* items(entries, closing) {
  const seen = new Set();
  let promptIsPast = false;
  for (const entry of entries) {
    for (const item of isOperator(entry) ? [{ said: saidIn(entry) }] : workIn(entry, entry === closing)) {
      if (item.step) yield item;
      else if (!seen.has(item.said.id)) {
        if (item.said.id) seen.add(item.said.id);
        const steer = promptIsPast || !isOperator(entry);
        if (item.said.text || item.said.parts.length) yield { said: { ...item.said, steer } };
      }
    }
    promptIsPast ||= isOperator(entry);
  }
}

/** An operator's message as a person saw it: empty when it was no bubble. */
function saidIn(entry) {
  const id = string(entry.messageId);
  const { hidden, origin, display } = object(entry.metadata);
  if (hidden || origin) return { id, text: "", parts: [] };
  const parts = objects(entry.parts);
  const attached = parts.filter((part) => !isText(part)).map(partOf).filter(Boolean);
  return { id, text: typeof display === "string" ? display : textOf(parts), parts: attached };
}

/** An agent's message; the words of a closing one, and those of a question, are shown in a place of their own. */
function* workIn(entry, isClosing) {
  const parts = objects(entry.parts);
  const asks = !isClosing && parts.some((part) => isOneOf(part, MARKERS.pauses));
  if (asks) yield { step: { type: "question", ...questionOf(entry) } };
  yield* callsUnder(entry);
  for (const part of parts) {
    yield* callsUnder(part);
    if (isOneOf(part, MARKERS.steers)) yield* steersIn(part);
    else if (!(isClosing || asks) || !(isText(part) || isOneOf(part, MARKERS.pauses))) {
      const step = stepOf(part);
      if (step) yield { step };
    }
  }
}

function* steersIn(part) {
  for (const { id, text } of objects(object(part.data).items)) {
    yield { said: { id: string(id), text: string(text), parts: [] } };
  }
}

function* callsUnder({ metadata }) {
  for (const [key, call] of Object.entries(object(metadata))) {
    if (MARKERS.toolCalls.has(key)) for (const each of objects([call].flat())) yield { step: toolCall(each) };
  }
}

function stepOf(part) {
  if (isText(part)) return part.text ? { type: "status", text: part.text } : null;
  const data = object(part.data);
  if (isOneOf(part, MARKERS.reasoning)) return { type: "reasoning", text: string(data.text) };
  if (typeof data.toolCallId === "string" && ("name" in data || "phase" in data)) return toolCall(data);
  return partOf(part);
}

function toolCall({ toolCallId, name, phase, args, result, error }) {
  return { type: "tool", id: string(toolCallId), name: string(name), phase: string(phase), args, result, error };
}

/** The timeline with each tool call once, where it is first mentioned. */
function paired(timeline) {
  const calls = new Map();
  return timeline.filter(({ step }) => {
    if (step?.type !== "tool" || !step.id) return true;
    const known = calls.get(step.id);
    if (known) learn(known, step);
    else calls.set(step.id, step);
    return !known;
  });
}

/** What a later message says of a call; a late `started` does not reopen it. */
function learn(call, { name, phase, args, result, error }) {
  call.name = name || call.name;
  call.phase = phase === "started" ? call.phase || phase : phase || call.phase;
  call.args = args ?? call.args;
  call.result = result ?? call.result;
  call.error = error ?? call.error;
}

function questionOf(entry) {
  const parts = objects(entry.parts);
  const form = parts.find((part) => isOneOf(part, MARKERS.pauses))?.data ?? null;
  return { text: textOf(parts) || string(object(form).question) || string(object(form).title), form };
}

/** A part that is no text, without its payload: a transcript is kept where room is scarce. */
function partOf(part) {
  if (part.data !== undefined) return { type: "data", mediaType: mediaTypeOf(part), data: part.data };
  const file = object(part.file); // 0.3 wraps it
  const name = string(part.filename ?? file.name);
  const mediaType = mediaTypeOf(part) || string(file.mimeType);
  const url = string(part.url ?? file.uri);
  const size = sizeOf(string(part.raw ?? file.bytes), object(part.metadata).omittedBytes);
  if (!name && !mediaType && !url && size === null) return null;
  return { type: "file", name, mediaType, url: /^https?:/i.test(url) ? url : "", size };
}

function sizeOf(base64, omittedBytes) {
  if (base64) return Math.floor((base64.replace(/=+$/, "").length * 3) / 4);
  return Number.isFinite(omittedBytes) ? omittedBytes : null;
}

/** 1.x has a member for it, 0.3 had none: producers of both write `mimeType` into the metadata. */
function mediaTypeOf(part) {
  return string(object(part.metadata).mimeType) || string(part.mediaType);
}

function isOneOf(part, mediaTypes) {
  return mediaTypes.has(part.mediaType) || mediaTypes.has(object(part.metadata).mimeType);
}

const isOperator = ({ role }) => role === "ROLE_USER" || role === "user";
const isText = ({ text }) => typeof text === "string";
const isPart = ({ type }) => type === "file" || type === "data";
const textOf = (parts) => parts.filter(isText).map(({ text }) => text).join("");

// whatever a row holds, reading it does not throw
const isObject = (member) => typeof member === "object" && member !== null && !Array.isArray(member);
const object = (member) => (isObject(member) ? member : {});
const objects = (members) => (Array.isArray(members) ? members.filter(isObject) : []);
const string = (member) => (typeof member === "string" ? member : "");
const strings = (members) => (Array.isArray(members) ? members.filter((each) => typeof each === "string") : []);
