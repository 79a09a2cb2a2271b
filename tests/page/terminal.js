// A picture of a page as high and wide as what is on it: node tests/page/terminal.js FILE.html FILE.png
"use strict";

const path = require("node:path");
const { pathToFileURL } = require("node:url");
const { Browser } = require("./browser.js");

const [page, picture] = process.argv.slice(2);

async function main() {
  const browser = await Browser.start();
  try {
    await browser.screen(2000, 1200);
    await browser.ask("Page.navigate", { url: pathToFileURL(path.resolve(page)).href });
    await browser.until("document.readyState === 'complete' && document.querySelector('pre')");
    const [width, height] = await browser.value(`(() => { const pre = document.querySelector("pre");
      pre.style.display = "inline-block";
      const box = pre.getBoundingClientRect(); return [Math.ceil(box.width), Math.ceil(box.height)]; })()`);
    await browser.screen(width, height);
    await browser.picture(picture);
  } finally {
    await browser.stop();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
