// The live page as it is in the sources, with made-up admin pages behind it.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");

const FOLDER = path.join(__dirname, "../../src/admin/live");
const PIECES = ["begin", "numbers", "metrics", "pictures", "tables", "page"];
/** What a client may call itself, and no browser may take for markup. */
const HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

const file = (name) => fs.readFileSync(path.join(FOLDER, name), "utf8");
const policy = /"(default-src[^"]*)"/s.exec(fs.readFileSync(`${FOLDER}.rs`, "utf8"))[1].replace(/\\\s+/g, "");

function feeds() {
  const feed = (nth, state) => ({
    resource: ["pods.v1", "configmaps.v1", "deployments.v1.apps"][nth] ?? `widgets.v${nth}.example.org`,
    namespace: nth === 1 ? "team-a" : null, selector: null, encoding: "protobuf", state,
    staleSeconds: state === "stale" ? 12 : null, resourceVersion: String(184_000 + nth),
    oldestResourceVersion: "100", objects: 1000 * (nth + 1), objectBytes: 1, windowEvents: 900 + nth, windowBytes: 1,
    windowSpanSeconds: 300, memoryBytes: 3_000_000 * (nth + 1), lanes: 0, readers: 5000 - nth, snapshotsInUse: 0,
  });
  return Array.from({ length: 6 }, (_, nth) => feed(nth, nth === 4 ? "stale" : "live"));
}

function watches(total) {
  return Array.from({ length: total }, (_, nth) => ({
    user: `system:node:n${nth}`, userAgent: nth === 3 ? HOSTILE : `kubelet/v1.37.1 (linux/amd64) n${nth}`,
    resource: "pods.v1", namespace: nth % 2 ? "team-a" : null, selectors: nth % 3 ? "none" : "fields",
    representation: "protobuf", protocol: "h2", openSeconds: 60 + nth, bytesSent: 4096 * nth,
    resourceVersion: "184000", feedResourceVersion: "184000", eventsBehind: nth === 5 ? 17 : 0,
    eventsBehindIsLowerBound: false, state: nth === 5 ? "stalled" : "idle", stateSeconds: nth,
  }));
}

function metrics(looks) {
  const series = (name, le, of) => `kube_fanout_${name}_seconds_bucket{resource="pods.v1",le="${le}"} ${of * looks}`;
  const bucket = (le, of) => series("watch_delivery", le, of);
  const age = (le, of) => series("upstream_event_age", le, of);
  return [
    "# HELP x y", 'kube_fanout_build_info{version="9.8.7",revision="abc"} 1',
    'kube_fanout_watches_open{resource="pods.v1",protocol="h2"} 4000', 'kube_fanout_watches_open{protocol="h1"} 1000',
    'kube_fanout_upstream_streams_open{cause="watch"} 6', `kube_fanout_upstream_events_total{} ${50 * looks}`,
    `kube_fanout_watch_events_total{} ${250_000 * looks}`, `kube_fanout_watch_bytes_total{} ${9e7 * looks}`,
    `kube_fanout_served_total{verb="list"} ${300 * looks}`, `kube_fanout_refused_total{code="429"} 2`,
    `kube_fanout_forwarded_total{reason="table"} ${3 * looks}`, 'kube_fanout_forwarded_total{reason="verb"} 40',
    `kube_fanout_upstream_requests_total{cause="list"} ${10 + looks}`, "process_start_time_seconds 1790000000",
    `process_cpu_seconds_total ${0.4 * looks}`, "process_resident_memory_bytes 150000000",
    'kube_fanout_memory_used_bytes{kind="objects"} 50000000', "kube_fanout_memory_budget_bytes 700000000",
    bucket("0.001", 50), bucket("0.01", 99), bucket("+Inf", 100), age("1", 90), age("2.5", 100), age("+Inf", 100),
  ].join("\n");
}

/** Starts it. `world` says how many watches there are, whether they may be seen, and whether anybody answers. */
async function serve(world) {
  let looks = 0;
  const json = (value) => ["application/json", JSON.stringify(value)];
  const pages = {
    "/": () => ["text/html; charset=utf-8", file("page.html")],
    "/live.css": () => ["text/css", file("live.css")],
    "/live.js": () => ["text/javascript", PIECES.map((piece) => file(`${piece}.js`)).join("")],
    "/live.svg": () => ["image/svg+xml", file("icon.svg")],
    "/metrics": () => ["text/plain", metrics(++looks)],
    "/debug/feeds": () => json(feeds()),
    "/debug/cost": () => json([{ cause: "list", requests: 10 + looks, streamsOpen: 0, bodyBytes: 1e6 },
      { cause: "forwarded", requests: 0, streamsOpen: 0, bodyBytes: 0 }]),
    "/readyz": () => ["text/plain", "[+]feed pods.v1 live\nreadyz check passed\n"],
    "/debug/watches": (query) => {
      world.asked = query;
      const found = watches(world.watches).filter((watch) => watch.userAgent.includes(query.get("agent")));
      return json({ total: found.length, omitted: 0, watches: found.slice(0, Number(query.get("limit"))) });
    },
  };
  const server = http.createServer((request, response) => {
    const url = new URL(request.url, "http://x");
    if (world.isGone) return request.socket.destroy();
    if (url.pathname === "/debug/watches" && world.isUnsure) return response.writeHead(503).end("who are you?");
    const isRefused = url.pathname === "/debug/watches" && world.token && request.headers.authorization !== world.token;
    const [kind, body] = isRefused ? ["text/plain", "send a bearer token\n"]
      : pages[url.pathname]?.(url.searchParams) ?? ["text/plain", ""];
    const headers = { "content-type": kind, "content-security-policy": policy, "x-content-type-options": "nosniff" };
    response.writeHead(isRefused ? 401 : pages[url.pathname] ? 200 : 404, headers).end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, stop: () => server.close() };
}

module.exports = { serve, HOSTILE };
