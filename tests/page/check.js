// What the live page must do, in a browser; `make page` runs it.
"use strict";

const assert = require("node:assert/strict");
const { Browser, find } = require("./browser.js");
const { serve, HOSTILE } = require("./answers.js");

const text = (id) => `document.getElementById("${id}").textContent`;
const rows = (id) => `document.querySelectorAll("#${id} tbody tr").length`;
const first = (id, column) => `document.querySelector("#${id} tbody tr").cells[${column}].textContent`;
const click = (id, name) => `[...document.querySelectorAll("#${id} th button")].find((b) => b.textContent === "${name}").click()`;
const write = (id, value) => `(() => { const field = document.getElementById("${id}"); field.value = ${JSON.stringify(value)};
  field.dispatchEvent(new Event("input")); })()`;
const seen = `document.getElementById("state").textContent.startsWith("Ready")`;

const CHECKS = {
  async "it shows what the pages say, and asks nobody else"(browser, { url, world }) {
    world.watches = 20;
    await browser.open(url);
    await browser.until("page.looks > 1");
    const tiles = await browser.value(text("tiles"));
    for (const part of ["5,000", "6 upstream streams", "833 client watches per upstream stream", "1 ms", "p99 10 ms"]) assert.ok(tiles.includes(part), `${part}: ${tiles}`);
    assert.equal(await browser.value(rows("feeds")), 6);
    assert.equal(await browser.value(text("feeds-count")), "6 feeds");
    assert.match(await browser.value(text("state")), /1 feed is stale/);
    assert.match(await browser.value(text("where")), /version 9\.8\.7/);
    assert.equal(await browser.value(rows("watches")), 20);
    assert.equal(await browser.value(rows("cost")), 1);
    await browser.until(`document.querySelector("path.line-0").getAttribute("d").includes("L")`);
    assert.deepEqual(browser.requests.filter((asked) => !asked.startsWith(url)), []);
  },

  async "what clients choose stays text"(browser, { url }) {
    await browser.open(url);
    await browser.until(`${rows("watches")} > 0`);
    const names = await browser.value(`[...document.querySelectorAll("#watches td.name span")].map((s) => s.textContent)`);
    assert.ok(names.includes(HOSTILE), names.join("\n"));
    assert.equal(await browser.value("document.images.length + document.scripts.length"), 1);
    assert.equal(await browser.value("document.title"), "kube-fanout, live");
    await assert.rejects(browser.value(`document.body.innerHTML = "<b>x</b>"`), /TrustedHTML/);
    browser.problems.length = 0;
  },

  async "five thousand watches are a hundred rows, and quick"(browser, { url, world }) {
    world.watches = 5000;
    await browser.open(url);
    await browser.until(`${rows("watches")} === 100`);
    assert.equal(await browser.value(text("watches-count")), "100 of 5,000 watches; filter to see others");
    const took = await browser.value(`(() => { const began = performance.now();
      for (let n = 0; n < 20; n += 1) page.watches.show(page.watchesRead);
      return (performance.now() - began) / 20; })()`);
    assert.ok(took < 50, `${took} ms for a drawing`);
    await browser.value(write("filter-agent", "n4999"));
    await browser.until(`${rows("watches")} === 1`);
    await browser.value(write("filter-agent", ""));
  },

  async "tables are sorted: feeds here, watches by the proxy"(browser, { url, world }) {
    await browser.open(url);
    await browser.until(`${rows("feeds")} === 6`);
    assert.equal(await browser.value(first("feeds", 0)), "pods.v1");
    await browser.value(click("feeds", "Memory"));
    assert.equal(await browser.value(first("feeds", 0)), "widgets.v5.example.org");
    await browser.value(click("feeds", "Memory"));
    assert.equal(await browser.value(first("feeds", 0)), "pods.v1");
    assert.equal(await browser.value(`document.querySelectorAll("#feeds th[aria-sort=ascending]").length`), 1);
    await browser.value(write("feeds-filter", "team-a"));
    assert.equal(await browser.value(rows("feeds")), 1);
    await browser.value(click("watches", "Sent"));
    await browser.until(`page.watches.order.column === "sent"`);
    await browser.until("performance.getEntriesByType('resource').some((r) => r.name.includes('sort=sent'))");
    assert.equal(world.asked.get("sort"), "sent");
    assert.equal(world.asked.get("order"), "down");
  },

  async "it works by keyboard"(browser, { url }) {
    await browser.open(url);
    await browser.until(seen);
    await browser.key("Tab");
    assert.equal(await browser.value("document.activeElement.className"), "skip");
    const outline = `getComputedStyle(document.activeElement).outlineStyle`;
    assert.equal(await browser.value(outline), "solid");
    await browser.key("Enter", "Enter", 0, "\r");
    await browser.until(`document.activeElement.id === "main"`);
    for (let n = 0; n < 3; n += 1) await browser.key("Tab");
    assert.equal(await browser.value("document.activeElement.textContent"), "State");
    await browser.key("Enter", "Enter", 0, "\r");
    assert.equal(await browser.value("page.feeds.order.column"), "state");
    assert.equal(await browser.value(outline), "solid");
    const nameless = await browser.value(`[...document.querySelectorAll("button, input, select, [role=img], table")]
      .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length`);
    assert.equal(nameless, 0);
  },

  async "light and dark can be chosen, and both can be read"(browser, { url }) {
    const contrast = `(() => {
      const part = (c) => { const v = c / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
      const light = (rgb) => { const [r, g, b] = rgb.match(/[0-9.]+/g).map(Number);
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
      const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (!c.endsWith(", 0)")) return c; } return "rgb(255, 255, 255)"; };
      return Math.min(...[...document.querySelectorAll("h1, h2, h3, p, td span, th button, label")].map((e) => {
        const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05); })); })()`;
    const paper = "getComputedStyle(document.body).backgroundColor";
    for (const scheme of ["light", "dark"]) {
      await browser.screen(1280, 900, scheme);
      await browser.open(url);
      await browser.until(`${seen} && ${rows("watches")} > 0`);
      const ratio = await browser.value(contrast);
      assert.ok(ratio >= 4.5, `${scheme}: ${ratio}`);
    }
    const dark = await browser.value(paper);
    const choose = (theme) => browser.value(`(() => { const t = document.getElementById("theme"); t.value = "${theme}";
      t.dispatchEvent(new Event("change")); })()`);
    await choose("light");
    assert.notEqual(await browser.value(paper), dark);
    await browser.open(url);
    assert.notEqual(await browser.value(paper), dark, "it is remembered");
    await choose("");
    assert.equal(await browser.value(paper), dark);
    await browser.screen(1280, 900);
  },

  async "a narrow screen needs no sideways scrolling"(browser, { url }) {
    await browser.screen(375, 800);
    await browser.open(url);
    await browser.until(`${seen} && ${rows("watches")} === 100`);
    assert.ok(await browser.value("document.documentElement.scrollWidth <= 375"));
    assert.ok(await browser.value(`[...document.querySelectorAll(".table")].every((t) => t.scrollWidth <= t.clientWidth)`));
    await browser.screen(1280, 900);
  },

  async "nobody looks, and nothing is asked"(browser, { url }) {
    await browser.open(url);
    await browser.until(seen);
    const hide = (is) => browser.value(`Object.defineProperty(document, "hidden", { value: ${is}, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"))`);
    await hide(true);
    const before = browser.requests.length;
    // Time itself is what is judged: two looks would have been made.
    await new Promise((resolve) => setTimeout(resolve, 2500));
    assert.equal(browser.requests.length, before);
    await hide(false);
    await browser.until("page.looks > 1");
    assert.ok(browser.requests.length > before);
    await browser.value("document.getElementById('pause').click()");
    const paused = browser.requests.length;
    await new Promise((resolve) => setTimeout(resolve, 2500));
    assert.equal(browser.requests.length, paused);
  },

  async "who wants less motion sees pictures move rarely"(browser, { url }) {
    await browser.screen(1280, 900, "light", "reduce");
    await browser.open(url);
    const drawn = `document.querySelector("path.line-0").getAttribute("d")`;
    await browser.until("page.looks === 2");
    const early = await browser.value(drawn);
    await browser.until("page.looks === 4");
    assert.equal(await browser.value(drawn), early);
    await browser.screen(1280, 900);
  },

  async "watches that may not be seen are not, until a token is given"(browser, { url, world }) {
    world.token = "Bearer sesame";
    await browser.open(url);
    await browser.until(`!document.getElementById("watches-refused").hidden`);
    assert.match(await browser.value(text("watches-why")), /^Hidden: send a bearer token \(401\)\.$/);
    assert.ok(await browser.value(`document.getElementById("watches-shown").hidden && ${rows("watches")} === 0`));
    await browser.value(`(() => { document.getElementById("token").value = "sesame";
      document.getElementById("token-form").requestSubmit(); })()`);
    await browser.until(`${rows("watches")} === 100`);
    const kept = `document.getElementById("token").value + JSON.stringify({ ...localStorage, ...sessionStorage }) +
      document.cookie + location.href`;
    assert.ok(!(await browser.value(kept)).includes("sesame"));
    await browser.open(`${url}#token=sesame`);
    await browser.until(`${rows("watches")} === 100`);
    assert.equal(await browser.value("location.href"), url, "the token does not stay in the address");
    delete world.token;
  },

  async "watches are back soon when it is known again who may see them"(browser, { url, world }) {
    world.isUnsure = true;
    await browser.open(url);
    await browser.until(`!document.getElementById("watches-refused").hidden`);
    assert.ok(await browser.value(`document.getElementById("token-form").hidden`), "a token would not help");
    world.isUnsure = false;
    const looks = await browser.value("page.looks");
    await browser.until(`${rows("watches")} === 100`);
    assert.ok(await browser.value("page.looks") <= looks + 5);
  },

  async "a proxy that does not answer is said to be gone, and is found again"(browser, { url, world }) {
    await browser.open(url);
    await browser.until(seen);
    world.isGone = true;
    await browser.until(`${text("state")}.startsWith("No response (cannot connect)")`);
    world.isGone = false;
    await browser.until(seen);
    browser.problems.length = 0;
  },
};

async function main() {
  if (!find()) {
    console.error("SKIPPED: no Chromium (Debian: apt-get install chromium)");
    process.exitCode = process.env.CI ? 1 : 0;
    return;
  }
  const world = { watches: 20 };
  const { url, stop } = await serve(world);
  const browser = await Browser.start();
  try {
    await browser.screen(1280, 900);
    for (const [name, check] of Object.entries(CHECKS)) {
      const began = Date.now();
      await check(browser, { url, world }).catch((error) => {
        throw new Error(`${name}: ${error.message}`, { cause: error });
      });
      assert.deepEqual(browser.problems, [], name);
      console.log(`ok ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
    }
  } finally {
    await browser.stop();
    stop();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
