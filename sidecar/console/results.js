// Searches every turn and shows the hits in the list's place; what is marked is text, never markup.

import { arrowKeys, element, marked, visible } from "./dom.js";
import { count, stateWords } from "./words.js";

const TYPING_MS = 250;

/**
 * @param {object} options
 * @param {ReturnType<import("./client.js").connect>} options.client
 * @param {(sessionId: string, turnId: string | null) => void} options.onOpen
 * @param {() => void} options.onLeave  The search ended; the list is back.
 */
export function createResults({ client, onOpen, onLeave }) {
  const [form, query, pane, index] = ["search", "query", "results", "index"].map((id) => document.getElementById(id));
  const status = document.getElementById("found");
  const [heading, list, more] = ["h2", "ul", ".wide"].map((selector) => pane.querySelector(selector));
  const settle = arrowKeys(pane, ".row");
  let pending = null;
  let timer = 0;

  /** Searches for what the field holds now; resolves when the hits stand there. */
  async function search() {
    clearTimeout(timer);
    pending?.abort();
    const words = query.value.trim();
    if (!words) return leave();
    const { signal } = (pending = new AbortController());
    await page(words, signal, null);
  }

  async function page(words, signal, after) {
    try {
      const answer = await client.search(words, { after, signal });
      if (!after) list.replaceChildren();
      const hits = answer.matches.map((match) => hit(match, patternOf(words, answer.query_lexemes)));
      list.append(...hits);
      const { next_after: next } = answer.pagination;
      heading.textContent = told(list.children.length, next, answer);
      more.hidden = !next;
      more.onclick = () => {
        more.onclick = null; // a page is asked for once
        page(words, signal, next);
      };
      if (after) hits[0]?.querySelector(".row").focus();
    } catch (error) {
      if (signal.aborted) return;
      list.replaceChildren();
      more.hidden = true;
      heading.textContent = error.detail ?? String(error);
    }
    pane.hidden = false;
    index.hidden = true;
    status.textContent = heading.textContent;
    settle();
  }

  function hit(match, pattern) {
    const { conversation_public_id: id, title, turn_public_id: turn, field, position, excerpt, state } = match;
    const about = [field, position && `turn ${position}`, state && stateWords(state).word].filter(Boolean).join(" · ");
    const row = element(
      "button",
      { type: "button", className: "row", tabIndex: -1, onclick: () => onOpen(id, turn) },
      element("span", { className: "excerpt", dir: "auto" }, highlighted(excerpt, pattern)),
      element("small", {}, element("span", { dir: "auto" }, visible(title ?? id))),
      element("small", { className: "end" }, about),
    );
    return element("li", {}, row);
  }

  function leave() {
    clearTimeout(timer);
    pending?.abort();
    query.value = "";
    if (pane.hidden) return;
    pane.hidden = true;
    index.hidden = false;
    list.replaceChildren();
    status.textContent = "";
    onLeave();
  }

  query.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(search, TYPING_MS);
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    await search();
    list.querySelector(".row")?.focus();
  };
  form.onkeydown = (event) => {
    if (event.key === "ArrowDown") list.querySelector(".row")?.focus();
  };

  return {
    leave,
    isOpen: () => !pane.hidden,
    focus: () => query.select(),
    focusHits: () => (list.querySelector('.row[tabindex="0"]') ?? query).focus(),
  };
}

function told(number, next, { ignored_terms, availability }) {
  const ignored = ignored_terms.length ? `; not searched: ${ignored_terms.join(", ")}` : "";
  const partly = availability.complete ? "" : "; older turns are still being indexed";
  return `${number ? `${count(number, "hit")}${next ? " so far" : ""}` : "Nothing found"}${ignored}${partly}`;
}

/** The words of a query, in the forms in which an excerpt may hold them. */
function patternOf(words, lexemes) {
  const terms = [...new Set([...words.split(/\s+/), ...lexemes])].filter(Boolean).sort((a, b) => b.length - a.length);
  const escaped = terms.map((term) => term.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"));
  const inflected = (term) => `(?<![\\p{L}\\p{N}])${term}[\\p{L}\\p{N}]*`;
  const forms = escaped.map((term) => (/\p{Script=Han}/u.test(term) ? term : inflected(term)));
  return new RegExp(forms.join("|"), "giu");
}

function highlighted(excerpt, pattern) {
  return marked(excerpt, pattern, (found) => element("mark", {}, visible(found)), visible);
}
