// Pictures of a live page that runs: node tests/page/shots.js URL FOLDER [PREFIX]
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { Browser } = require("./browser.js");

const [url, folder, prefix = "live"] = process.argv.slice(2);
/** The looks that a picture has behind it. */
const LOOKS = Number(process.env.LOOKS ?? 40);
const SHOTS = [["light", 1280, 1150, "light"], ["dark", 1280, 1150, "dark"], ["narrow", 375, 1400, "light"]];

async function main() {
  fs.mkdirSync(folder, { recursive: true });
  const browser = await Browser.start();
  try {
    for (const [name, width, height, scheme] of SHOTS) {
      await browser.screen(width, height, scheme);
      await browser.open(url);
      const end = Date.now() + 1000 * LOOKS;
      while (Date.now() < end && await browser.value("page.looks") < LOOKS) {
        await new Promise((resolve) => setTimeout(resolve, 200));
      }
      await browser.picture(path.join(folder, `${prefix}-${name}.png`));
    }
  } finally {
    await browser.stop();
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
