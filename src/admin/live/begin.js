// Shows a running proxy: asks its admin pages about once a second while somebody looks, and draws what they say.
// What clients choose (users, agents, names) comes into the page as text, never as markup.
"use strict";

/** From the beginning of a look to that of the next. */
const EVERY_MS = 1000;
/** The share of the time that looks may take: behind slow answers comes a longer pause. */
const SHARE_MAX = 0.2;
/** How long an answer may take. */
const ANSWER_MS_MAX = 10_000;
/** Looks that a picture shows. */
const POINTS_MAX = 120;
/** Rows of a table; of more than these the filters find others. */
const ROWS_MAX = 100;
/** After so many looks it is asked again for what was refused, and for what could not be answered. */
const REFUSED_LOOKS = 30;
const UNANSWERED_LOOKS = 3;
/** For who wants less motion, pictures are drawn every so many looks. */
const CALM_LOOKS = 10;

const byId = (id) => document.getElementById(id);

/** An element with attributes and, as its text, what may come from anybody. */
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
