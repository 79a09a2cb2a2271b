// The page: it polls the proxy and fills the parts.

/** The filters of watches. */
const FILTERS = ["user", "agent", "resource"];

class Page {
  constructor() {
    this.tiles = TILES.map((kind) => new Tile(kind, byId("tiles")));
    const again = () => this.showFeeds();
    this.feeds = new Table(byId("feeds"), "Feeds", FEED_COLUMNS, { column: "readers", isDown: true }, again);
    const soon = () => (this.isPaused ? this.watches.show(this.watches.arrange(this.watchesRead)) : this.look());
    this.watches = new Table(byId("watches"), "Watches", WATCH_COLUMNS, { column: "behind", isDown: true }, soon);
    const cost = () => this.between && this.showCost(this.between);
    this.cost = new Table(byId("cost"), "Upstream cost", COST_COLUMNS, { column: "requests", isDown: true }, cost);
    this.passed = new Table(byId("passed"), "Forwarded", PASSED_COLUMNS, { column: "times", isDown: true }, cost);
    this.watchesRead = [];
    this.feedsRead = [];
    this.looks = 0;
    this.token = tokenOfAddress();
    this.askAgainAt = 0;
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
    this.listen();
    say(byId("where"), location.host);
    this.look();
  }

  listen() {
    document.addEventListener("visibilitychange", () => this.look());
    byId("pause").addEventListener("click", () => {
      this.isPaused = !this.isPaused;
      byId("pause").setAttribute("aria-pressed", String(this.isPaused));
      if (this.isPaused) this.status("Paused.", "odd");
      this.look();
    });
    byId("feeds-filter").addEventListener("input", () => this.showFeeds());
    for (const name of FILTERS) byId(`filter-${name}`).addEventListener("input", () => this.look());
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.token = byId("token").value.trim();
      byId("token").value = "";
      this.askAgainAt = 0;
      this.look();
    });
  }

  /** Polls now, and then repeatedly while the page is visible. Aborts a poll that is in progress. */
  async look() {
    clearTimeout(this.timer);
    this.asking?.abort();
    if (document.hidden || this.isPaused) return;
    const asking = new AbortController();
    this.asking = asking;
    const began = performance.now();
    const late = setTimeout(() => asking.abort("timeout"), ANSWER_MS_MAX);
    try {
      await this.ask(asking.signal);
    } catch (error) {
      if (this.asking === asking) this.lost(error);
    } finally {
      clearTimeout(late);
    }
    if (this.asking !== asking) return;
    const took = performance.now() - began;
    this.timer = setTimeout(() => this.look(), Math.max(EVERY_MS - took, took / SHARE_MAX - took));
  }

  async ask(signal) {
    const page = async (path, accepts = []) => {
      const answer = await fetch(path, { signal, cache: "no-store", credentials: "omit", redirect: "error" });
      if (!answer.ok && !accepts.includes(answer.status)) throw new Error(`${path}: ${answer.status}`);
      return answer.text();
    };
    const [metrics, feeds, cost, ready] = await Promise.all(
      [page("metrics"), page("debug/feeds"), page("debug/cost"), page("readyz", [503]), this.askWatches(signal)]);
    const now = { ...readMetrics(metrics), at: performance.now(), cost: JSON.parse(cost) };
    this.show(now, JSON.parse(feeds), ready);
  }

  show(now, feeds, ready) {
    const of = new Between(this.before, now);
    this.before = now;
    this.looks += 1;
    const draws = !this.isCalm.matches || this.looks % CALM_LOOKS === 1;
    this.tiles.forEach((tile) => tile.show(of, draws));
    this.feedsRead = feeds;
    this.showFeeds();
    this.showCost(of);
    const pending = [...ready.matchAll(/^\[-\](.*?) not ready(?:: .*)?$/gm)].map((match) => match[1]);
    const old = feeds.filter((feed) => feed.state === "stale").length;
    const isOld = old > 0 ? `, ${old === 1 ? "1 feed is" : `${count(old)} feeds are`} stale` : "";
    if (pending.length > 0) this.status(`Not ready: ${pending.join(", ")}${isOld}.`, "bad");
    else this.status(`Ready${isOld}.`, old > 0 ? "odd" : "good");
    const age = seconds(Math.max(0, Date.now() / 1000 - (now.sums.get("process_start_time_seconds") ?? 0)));
    say(byId("where"), `${location.host}, version ${now.version}, started ${age} ago`);
    document.body.classList.remove("is-old");
  }

  /** Announced only when it changes. */
  status(text, mark) {
    say(byId("state"), text);
    byId("state").className = `state ${mark}`;
  }

  lost(error) {
    const why = error instanceof Error && !(error instanceof TypeError) ? error.message : "cannot connect";
    this.status(`No response (${why}); showing old data. Retrying.`, "bad");
    document.body.classList.add("is-old");
    this.before = null;
    this.tiles.forEach((tile) => tile.gap());
  }

  showFeeds() {
    const wanted = byId("feeds-filter").value.trim().toLowerCase();
    const found = this.feedsRead.filter((feed) => `${feedName(feed)} ${feed.state}`.toLowerCase().includes(wanted));
    const shown = this.feeds.show(this.feeds.arrange(found));
    say(byId("feeds-count"), shownOf(shown, found.length, "feeds"));
  }

  async askWatches(signal) {
    if (this.looks < this.askAgainAt) return;
    const { column, isDown } = this.watches.order;
    const query = new URLSearchParams({ limit: ROWS_MAX, sort: column, order: isDown ? "down" : "up" });
    for (const name of FILTERS) query.set(name, byId(`filter-${name}`).value.trim());
    const headers = this.token ? { authorization: `Bearer ${this.token}` } : {};
    const answer = await fetch(`debug/watches?${query}`,
      { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
    if (answer.ok) this.showWatches(await answer.json());
    else this.refuse(answer.status, reasonOf(await answer.text()));
  }

  showWatches({ total, watches }) {
    this.watchesRead = watches;
    byId("watches-refused").hidden = true;
    byId("watches-shown").hidden = false;
    say(byId("watches-count"), shownOf(this.watches.show(watches), total, "watches"));
  }

  /** Hides watches that were shown before. */
  refuse(status, why) {
    const isNo = [401, 403].includes(status);
    this.askAgainAt = this.looks + (isNo ? REFUSED_LOOKS : UNANSWERED_LOOKS);
    this.watchesRead = [];
    this.watches.show([]);
    byId("watches-shown").hidden = true;
    byId("watches-refused").hidden = false;
    byId("token-form").hidden = !isNo || why.includes("auth: delegated");
    say(byId("watches-why"), `Hidden: ${why} (${status}).`);
  }

  showCost(of) {
    const before = new Map((of.before?.cost ?? []).map((row) => [row.cause, row.requests]));
    const perSecond = (grown) => (of.before ? Math.max(0, grown) / of.elapsed : null);
    this.between = of;
    const rows = of.now.cost.filter((row) => row.requests > 0)
      .map((row) => ({ ...row, rate: perSecond(row.requests - (before.get(row.cause) ?? 0)) }));
    this.cost.show(this.cost.arrange(rows));
    const passed = [...of.now.passed].map(([reason, times]) =>
      ({ reason, times, rate: perSecond(times - (of.before?.passed.get(reason) ?? 0)) }));
    this.passed.show(this.passed.arrange(passed.filter((row) => row.times > 0)));
    const sum = (name) => of.now.sums.get(name) ?? 0;
    const clients = sum("kube_fanout_served_total") + sum(FORWARDED) + sum("kube_fanout_refused_total");
    const upstream = `${count(sum("kube_fanout_upstream_requests_total"))} requests upstream and ` +
      `${bytes(sum("kube_fanout_upstream_body_bytes_total"))} received from upstream`;
    say(byId("cost-sum"), `Since the start: ${upstream}, for ${count(clients)} client requests and ` +
      `${bytes(sum("kube_fanout_watch_bytes_total"))} of events sent to clients.`);
  }
}

/** The message of a Status, or a text as it is. */
function reasonOf(refusal) {
  try {
    return JSON.parse(refusal).message ?? refusal;
  } catch {
    return refusal.trim();
  }
}

function shownOf(shown, total, what) {
  const all = `${count(total)} ${what}`;
  return shown < total ? `${count(shown)} of ${all}; filter to see others` : all;
}

/** The token after the # of the address, which browsers do not send. It is removed from the address. */
function tokenOfAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  if (token !== "") history.replaceState(null, "", location.pathname);
  return token;
}

/** Applies the selected colours, or those of the system. */
function chooseColours() {
  const choice = byId("theme");
  const apply = (theme) => {
    if (theme === "") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  try {
    choice.value = localStorage.getItem("theme") ?? "";
  } catch {
    // Storage may be disabled; then the choice is not kept.
  }
  apply(choice.value);
  choice.addEventListener("change", () => {
    apply(choice.value);
    try {
      localStorage.setItem("theme", choice.value);
    } catch {
      // As above.
    }
  });
}

chooseColours();
const page = new Page();
