// Shows a running proxy: polls its admin pages about once a second while the page is visible.
// Text that clients control (users, agents, names) is inserted as text, never as markup.
"use strict";

/** The interval between the starts of two polls. */
const EVERY_MS = 1000;
/** The maximum share of time for polls: after slow responses the pause is longer. */
const SHARE_MAX = 0.2;
/** Timeout of a poll. */
const ANSWER_MS_MAX = 10_000;
/** Polls in a chart. */
const POINTS_MAX = 120;
/** Maximum number of rows of a table. */
const ROWS_MAX = 100;
/** Polls until watches are requested again after a refusal, and after another error. */
const REFUSED_LOOKS = 30;
const UNANSWERED_LOOKS = 3;
/** Polls between two redraws of charts if the user prefers reduced motion. */
const CALM_LOOKS = 10;

const byId = (id) => document.getElementById(id);

/** Creates an element with attributes and untrusted text. */
function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  return made;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function label(node, value) {
  if (node.getAttribute("aria-label") !== value) node.setAttribute("aria-label", value);
}
