// Builds DOM nodes from text; it may not parse markup, and it knows no session.

const BIDI_NAMES = {
  "\u061c": "ALM", "\u200e": "LRM", "\u200f": "RLM",
  "\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO",
  "\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI",
};
const BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069";
const CONTROL = new RegExp(`[${BIDI}]`, "g");
// an address ends before the punctuation of its sentence
const LINK_OR_CONTROL = new RegExp(`https?://[^\\s<>"'${BIDI}]*[^\\s<>"'${BIDI}.,;:!?)\\]}。，）]|[${BIDI}]`, "gi");
const SHOWN_AT_ONCE = 20_000;
const shownWhole = new WeakSet();

/**
 * An element with properties, `data` attributes, attributes whose names hold a hyphen, and children.
 * @param {string} tag
 * @param {Object<string, unknown>} [properties]
 * @param {...(Node | string | null)} children
 * @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(made.dataset, value);
    else if (name.includes("-")) made.setAttribute(name, String(value));
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A plain button. */
export function button(label, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, label);
}

/**
 * Stored text as nodes: bidirectional controls become visible, all else is text.
 * @param {string} text
 * @returns {DocumentFragment}
 */
export function visible(text) {
  return marked(text, CONTROL, visibleControl);
}

/** The same, with http(s) addresses as links; not for the inside of a button. @param {string} text */
export function linked(text) {
  return marked(text, LINK_OR_CONTROL, (found) => (found.length > 1 ? link(found) : visibleControl(found)));
}

/**
 * Text whose matches of a pattern become nodes.
 * @param {string} text
 * @param {RegExp} pattern  Global.
 * @param {(found: string) => Node} nodeOf
 * @param {(text: string) => string | Node} [between]
 */
export function marked(text, pattern, nodeOf, between = (rest) => rest) {
  const fragment = document.createDocumentFragment();
  let position = 0;
  for (const { 0: found, index } of text.matchAll(pattern)) {
    fragment.append(between(text.slice(position, index)), nodeOf(found));
    position = index + found.length;
  }
  fragment.append(between(text.slice(position)));
  return fragment;
}

function link(address) {
  return element("a", { href: address, rel: "noreferrer noopener", target: "_blank" }, address);
}

function visibleControl(character) {
  const code = character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
  return element("span", { className: "control", title: `U+${code}` }, BIDI_NAMES[character]);
}

/** Text without its bidirectional controls, for attributes, where they cannot be shown. */
export function plain(text) {
  return text.replace(CONTROL, "\ufffd");
}

/**
 * A block of transcript text in its own direction and, where its script tells, its language; a long one in two steps.
 * @param {string} text
 * @param {string} className
 * @param {HTMLElement} [known]  The block of an earlier state of the text, to be kept.
 */
export function transcript(text, className, known) {
  const block = known ?? element("div", { className, dir: "auto" });
  const lang = languageOf(text);
  if (lang) block.lang = lang;
  if (text.length <= SHOWN_AT_ONCE || shownWhole.has(block)) {
    update(block, linked(text));
    return block;
  }
  const more = button(`Show all ${text.length.toLocaleString("en")} characters`, () => {
    shownWhole.add(block);
    block.replaceChildren(linked(text));
    block.tabIndex = -1;
    block.focus();
  });
  const start = linked(text.slice(0, SHOWN_AT_ONCE));
  start.append("… ", more);
  update(block, start);
  return block;
}

/**
 * Gives a parent other children and keeps those that are the same, or text that only grew: what is selected stays so.
 * @param {HTMLElement} parent
 * @param {DocumentFragment} fresh
 */
export function update(parent, fresh) {
  const wanted = [...fresh.childNodes];
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
  wanted.forEach((node, at) => {
    const old = parent.childNodes[at];
    if (!old) parent.append(node);
    else if (isGrown(old, node)) old.appendData(node.data.slice(old.length));
    else if (!old.isEqualNode(node)) replace(old, node);
  });
}

function isGrown(old, node) {
  return old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE && node.data.startsWith(old.data);
}

function replace(old, node) {
  const hadFocus = old === document.activeElement;
  old.replaceWith(node);
  if (hadFocus) node.focus({ preventScroll: true });
}

function languageOf(text) {
  const start = text.slice(0, 2_000);
  if (/[\p{Script=Hiragana}\p{Script=Katakana}]/u.test(start)) return "ja";
  if (/\p{Script=Hangul}/u.test(start)) return "ko";
  return /\p{Script=Han}/u.test(start) ? "zh" : "";
}

/**
 * Brings a parent's children in line with items, and keeps the elements, and the focus, of those that stay.
 * @param {HTMLElement} parent
 * @param {unknown[]} items
 * @param {(item: any) => string} keyOf
 * @param {(item: any, old: HTMLElement | undefined) => HTMLElement} render returns `old` or its replacement
 */
export function keyed(parent, items, keyOf, render) {
  const focused = document.activeElement;
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const child = render(item, old.get(keyOf(item)));
    child.dataset.key = keyOf(item);
    return child;
  });
  const staying = new Set(wanted);
  for (const child of [...parent.children]) if (!staying.has(child)) child.remove();
  wanted.forEach((child, at) => {
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
  });
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/**
 * Arrow keys, Home and End move the focus among the elements that a selector finds below a container; one of them is a
 * stop of the Tab key.
 * @param {HTMLElement} container
 * @param {string} selector
 * @returns {() => void} to be called after elements came or went
 */
export function arrowKeys(container, selector) {
  const all = () => [...container.querySelectorAll(selector)];
  const makeStop = (chosen) => all().forEach((each) => (each.tabIndex = each === chosen ? 0 : -1));
  container.addEventListener("focusin", ({ target }) => target.matches(selector) && makeStop(target));
  container.addEventListener("keydown", (event) => {
    const found = all();
    const at = found.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: found.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    found[next]?.focus();
  });
  return () => {
    const found = all();
    makeStop(found.find((each) => each.tabIndex === 0) ?? found[0]);
  };
}
