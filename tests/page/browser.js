// Headless Chromium, asked by the DevTools protocol through a pipe: no packages, no port.
"use strict";

const { spawn, spawnSync } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

/** How long one thing may take. */
const PATIENCE_MS = 30_000;
const NAMES = [process.env.CHROMIUM, "chromium", "chromium-browser", "google-chrome"].filter(Boolean);

function find() {
  return NAMES.find((name) => spawnSync(name, ["--version"], { stdio: "ignore" }).status === 0);
}

class Browser {
  static async start() {
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), "live-page-"));
    const flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
      "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars", `--user-data-dir=${folder}`];
    const child = spawn(find(), [...flags, "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    const browser = new Browser(child, folder);
    const { targetInfos } = await browser.ask("Target.getTargets");
    const { targetId } = targetInfos.find((target) => target.type === "page");
    const { sessionId } = await browser.ask("Target.attachToTarget", { targetId, flatten: true });
    browser.session = sessionId;
    for (const domain of ["Page", "Runtime", "Network", "Log"]) await browser.ask(`${domain}.enable`);
    return browser;
  }

  constructor(child, folder) {
    Object.assign(this, { child, folder, next: 1, waiting: new Map(), requests: [], problems: [] });
    let text = "";
    child.stdio[4].on("data", (data) => {
      text += data;
      const messages = text.split("\0");
      text = messages.pop();
      messages.forEach((message) => this.hear(JSON.parse(message)));
    });
  }

  hear({ id, result, error, method, params }) {
    if (id !== undefined) {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) reject(new Error(error.message));
      else resolve(result);
    }
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Runtime.exceptionThrown") this.problems.push(params.exceptionDetails.exception?.description);
    // A page that is refused is said to be, and is no problem of ours.
    if (method === "Log.entryAdded" && params.entry.source !== "network") this.problems.push(params.entry.text);
  }

  ask(method, params = {}) {
    const id = this.next++;
    const asked = new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      setTimeout(() => reject(new Error(`${method}: no answer`)), PATIENCE_MS).unref();
    });
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: this.session })}\0`);
    return asked;
  }

  /** The value of an expression in the page. */
  async value(expression) {
    const { result, exceptionDetails } =
      await this.ask("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until an expression in the page is true. */
  async until(expression) {
    const end = Date.now() + PATIENCE_MS;
    while (!(await this.value(expression).catch(() => false))) {
      if (Date.now() > end) throw new Error(`never so: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async screen(width, height, scheme = "light", motion = "no-preference") {
    await this.ask("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
    const features = [{ name: "prefers-color-scheme", value: scheme }, { name: "prefers-reduced-motion", value: motion }];
    await this.ask("Emulation.setEmulatedMedia", { features });
  }

  async open(url) {
    await this.ask("Page.navigate", { url: "about:blank" });
    this.requests.length = 0;
    await this.ask("Page.navigate", { url });
    await this.until("document.readyState === 'complete' && document.querySelectorAll('.tile').length > 0");
  }

  async key(key, code = key, modifiers = 0, typed = undefined) {
    const windowsVirtualKeyCode = { Tab: 9, Enter: 13, Space: 32 }[code];
    const event = { key, code, modifiers, windowsVirtualKeyCode, text: typed };
    await this.ask("Input.dispatchKeyEvent", { type: "keyDown", ...event });
    await this.ask("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  async picture(file) {
    const { data } = await this.ask("Page.captureScreenshot", { format: "png" });
    fs.writeFileSync(file, Buffer.from(data, "base64"));
  }

  async stop() {
    const ended = new Promise((resolve) => this.child.on("exit", resolve));
    this.child.kill();
    await ended;
    fs.rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

module.exports = { Browser, find };
