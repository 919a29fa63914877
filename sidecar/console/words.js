// Puts what the wire says into words for people; it builds no nodes.

import { stateName } from "./transcript.js";

const STATES = {
  "submitted": ["queued", "works"],
  "working": ["working", "works"],
  "input-required": ["needs input", "waits"],
  "auth-required": ["needs sign-in", "waits"],
  "completed": ["done", "done"],
  "failed": ["failed", "failed"],
  "rejected": ["rejected", "failed"],
  "canceled": ["cancelled", "ended"],
};
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const EXACT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [["year", 31_536_000], ["month", 2_592_000], ["week", 604_800], ["day", 86_400], ["hour", 3_600],
  ["minute", 60]];

/** A stored state, in either spelling. @returns {{word: string, kind: string}} */
export function stateWords(state) {
  const name = stateName(state);
  const [word, kind] = STATES[name] ?? [name || "no state", "unknown"];
  return { word, kind };
}

/** "3 min. ago"; "" for no time. @param {string | null} iso */
export function relative(iso) {
  if (!iso) return "";
  const seconds = (Date.parse(iso) - Date.now()) / 1_000;
  const [unit, size] = UNITS.find(([, least]) => Math.abs(seconds) >= least) ?? [];
  return unit ? RELATIVE.format(Math.trunc(seconds / size), unit) : "just now";
}

/** The local date and time to the second. @param {string | null} iso */
export function exact(iso) {
  return iso ? EXACT.format(new Date(iso)) : "time unknown";
}

/** The local dates and times from one to the other. @param {string} first @param {string} last */
export function span(first, last) {
  return EXACT.formatRange(new Date(first), new Date(last));
}

/** "1 turn", "3 turns". @param {number} count @param {string} noun */
export function count(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** "27 B", "1.4 kB". @param {number} bytes */
export function size(bytes) {
  const [unit, divisor] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, least]) => bytes >= least) ?? ["B", 1];
  return `${(bytes / divisor).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}

/**
 * A step of the agent's work as a name and what it says.
 * @param {import("./transcript.js").Step} step
 * @returns {[string, string]}
 */
export function stepWords(step) {
  switch (step.type) {
    case "tool": {
      const outcome = step.error ?? step.result;
      const told = [written(step.args), outcome == null ? "" : `→ ${written(outcome)}`].filter(Boolean).join(" ");
      return [step.name || "tool", told || step.phase];
    }
    case "reasoning":
      return ["thought", step.text];
    case "question":
      return ["asked", step.text];
    case "status":
      return ["said", step.text];
    default:
      return fileWords(step);
  }
}

/**
 * An attachment or file as its name and its size.
 * @param {import("./transcript.js").Part} part
 * @returns {[string, string]}
 */
export function fileWords(part) {
  if (part.type === "data") return [part.mediaType || "data", size(JSON.stringify(part.data).length)];
  return [part.name || part.url || part.mediaType || "file", part.size === null ? "" : size(part.size)];
}

/**
 * The choices that a pause offers, a line a field; "" for none.
 * @param {any} form
 */
export function choices(form) {
  const steps = Array.isArray(form?.steps) ? form.steps : [];
  const fields = steps.flatMap((step) => Object.entries(step?.schema?.properties ?? {}));
  const offered = fields.filter(([, field]) => Array.isArray(field?.enum));
  return offered.map(([name, field]) => `${name}: ${field.enum.map(written).join(", ")}`).join("\n");
}

function written(value) {
  return typeof value === "string" ? value : value == null ? "" : JSON.stringify(value);
}
