// Asks before something is deleted, with the one native dialog of the page; it deletes nothing itself.

import { button, element, visible } from "./dom.js";
import { count } from "./words.js";

const dialog = document.getElementById("confirm");

const GONE_FOR_GOOD = "hidden for good, even if a running task saves again. This can't be undone.";

/**
 * Whether the session is to be retired.
 * @param {{id: string, turns: number, isRunning: boolean}} session
 * @returns {Promise<boolean>}
 */
export function confirmRetire({ id, turns, isRunning }) {
  return ask(["Retire ", visible(id), "?"], "Retire", [
    `${count(turns, "stored turn")} will be deleted, and this id is ${GONE_FOR_GOOD}`,
    isRunning && warning("A turn is running now."),
  ]);
}

/** Whether so many sessions are to be retired. @param {number} number @param {number} running */
export function confirmRetireMany(number, running) {
  return ask([`Retire ${count(number, "session")}?`], `Retire ${number}`, [
    `Their stored turns will be deleted, and their ids are ${GONE_FOR_GOOD}`,
    running && warning(`Running now: ${count(running, "session")} of them.`),
  ]);
}

/** Whether the session's history is to be cleared. @param {{id: string, turns: number}} session */
export function confirmClear({ id, turns }) {
  return ask(["Clear the history of ", visible(id), "?"], "Clear history", [
    `${count(turns, "stored turn")} will be deleted. The id stays usable; what a running turn still saves stays ` +
      "hidden. This can't be undone.",
  ]);
}

function warning(text) {
  return element("strong", { className: "running" }, text);
}

function ask(heading, action, paragraphs) {
  // what is confirmed is what was read: a second question does not take the place of one that is open
  if (dialog.open) return Promise.resolve(false);
  dialog.returnValue = "";
  dialog.replaceChildren(
    element("h2", { id: "confirm-heading" }, ...heading),
    element("div", { id: "confirm-text" }, ...paragraphs.filter(Boolean).map((each) => element("p", {}, each))),
    element(
      "div",
      { className: "actions" },
      button("Cancel", () => dialog.close(), { autofocus: true }),
      button(action, () => dialog.close("yes"), { className: "danger" }),
    ),
  );
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
