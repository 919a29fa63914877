// Draws the session rows, those that wait first, and lets some be selected; it reads nothing from the sidecar.

import { arrowKeys, element, keyed, plain, visible } from "./dom.js";
import { count, exact, relative, stateWords } from "./words.js";

const WAITING_AT_FIRST = 20;
const PARTS = [".row", ".label", ".time", ".about", ".chip"];

const find = (id) => document.getElementById(id);

/**
 * @param {object} options
 * @param {ReturnType<import("./labels.js").createLabels>} options.labels
 * @param {(id: string) => void} options.onOpen
 * @param {(ids: string[]) => void} options.onRetire
 */
export function createList({ labels, onOpen, onRetire }) {
  const [index, waiting, recent] = ["index", "waiting", "recent"].map(find);
  const [select, retireSelected] = ["select", "retire-selected"].map(find);
  const selected = new Set();
  const rows = new WeakMap();
  let isSelecting = false;
  let drawn = null;

  const settle = arrowKeys(index, ".row");
  const inView = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      target.classList.toggle("in-view", isIntersecting);
      if (isIntersecting) labels.want(rows.get(target));
      if (!target.isConnected) inView.unobserve(target);
    }
  });

  /**
   * @param {{waiting: object[], recent: object[], hasMoreWaiting: boolean, openId: string | null}} shown
   */
  function draw(shown) {
    drawn = shown;
    const focused = document.activeElement;
    const number = `${shown.waiting.length}${shown.hasMoreWaiting ? "+" : ""}`;
    waiting.hidden = !shown.waiting.length;
    find("waiting-heading").textContent = `Waiting for you (${number})`;
    const list = waiting.querySelector("ul");
    const pinned = list.dataset.all ? shown.waiting : shown.waiting.slice(0, WAITING_AT_FIRST);
    keyed(list, pinned, (row) => row.session_id, drawRow);
    const rest = waiting.querySelector(".wide");
    rest.hidden = pinned.length === shown.waiting.length;
    rest.textContent = `Show all ${number}`;
    keyed(recent, shown.recent, (row) => row.session_id, drawRow);
    recent.removeAttribute("aria-busy");
    const there = new Set([...shown.waiting, ...shown.recent].map((row) => row.session_id));
    for (const id of selected) if (!there.has(id)) selected.delete(id);
    drawSelection();
    settle();
    // its row went from one list to the other, or away
    if (focused.matches(".row") && !focused.isConnected) focus(focused.closest("li").dataset.key);
  }

  function drawRow(row, old) {
    const item = old ?? newRow(row);
    rows.set(item, row);
    if (item.classList.contains("in-view")) labels.want(row);
    const id = row.session_id;
    const { word, kind } = stateWords(row.last_state || labels.stateOf(id));
    const [open, label, time, about, chip] = PARTS.map((part) => item.querySelector(part));
    open.setAttribute("aria-current", String(id === drawn.openId));
    item.classList.toggle("waits", kind === "waits");
    label.replaceChildren(visible(labels.titleOf(id) || id));
    const at = row.last_updated;
    Object.assign(time, { textContent: relative(at), dateTime: at ?? "", title: exact(at) });
    about.textContent = count(row.turn_count, "turn");
    chip.hidden = kind === "unknown";
    Object.assign(chip, { textContent: word }).dataset.state = kind;
    item.querySelector("input").hidden = !isSelecting;
    item.querySelector("input").checked = selected.has(id);
    return item;
  }

  function newRow({ session_id: id }) {
    const pick = element("input", { type: "checkbox", "aria-label": `Select ${plain(id)}` });
    pick.onchange = () => {
      selected[pick.checked ? "add" : "delete"](id);
      drawSelection();
    };
    const open = element(
      "button",
      { type: "button", className: "row", tabIndex: -1, onclick: () => onOpen(id) },
      element("span", { className: "label", dir: "auto" }),
      element("small", { className: "end" }, element("time", { className: "time" })),
      element("small", {}, element("span", { className: "id" }, visible(id)), element("span", { className: "about" })),
      element("small", { className: "end" }, element("span", { className: "chip" })),
    );
    const item = element("li", {}, pick, open);
    inView.observe(item);
    return item;
  }

  function redraw() {
    if (drawn) draw(drawn);
  }

  function drawSelection() {
    select.textContent = isSelecting ? "Done" : "Select";
    select.setAttribute("aria-pressed", String(isSelecting));
    retireSelected.hidden = !isSelecting;
    retireSelected.disabled = !selected.size;
    retireSelected.textContent = selected.size ? `Retire ${selected.size}` : "Retire";
  }

  select.onclick = () => {
    isSelecting = !isSelecting;
    if (!isSelecting) selected.clear();
    redraw();
  };
  retireSelected.onclick = () => onRetire([...selected]);
  waiting.querySelector(".wide").onclick = ({ target }) => {
    waiting.querySelector("ul").dataset.all = "yes";
    draw(drawn);
    target.previousElementSibling.querySelectorAll(".row")[WAITING_AT_FIRST]?.focus();
  };

  /** Focuses the row of a session, else the first one. */
  function focus(id) {
    const all = [...index.querySelectorAll("li")];
    (all.find((item) => item.dataset.key === id) ?? all[0])?.querySelector(".row").focus();
  }

  return { draw, redraw, focus };
}
