// Parses `/metrics`, and computes rates between two polls.

const FORWARDED = "kube_fanout_forwarded_total";
const LATENCIES = new Map([
  ["kube_fanout_watch_delivery_seconds_bucket", "delivery"],
  ["kube_fanout_upstream_event_age_seconds_bucket", "age"],
]);
const SUMS = new Set([
  "kube_fanout_watches_open", "kube_fanout_upstream_streams_open", "kube_fanout_upstream_events_total",
  "kube_fanout_watch_events_total", "kube_fanout_watch_bytes_total", "kube_fanout_served_total", FORWARDED,
  "kube_fanout_refused_total", "kube_fanout_upstream_requests_total", "kube_fanout_upstream_body_bytes_total",
  "kube_fanout_memory_used_bytes", "kube_fanout_memory_budget_bytes", "process_cpu_seconds_total",
  "process_resident_memory_bytes", "process_start_time_seconds",
]);

/** Parses Prometheus text: sums by name, forwarded requests by reason, and latencies. */
function readMetrics(text) {
  const late = { delivery: new Map(), age: new Map() };
  const read = { sums: new Map(), passed: new Map(), late, version: "" };
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const brace = line.indexOf("{");
    const space = line.lastIndexOf(" ");
    const name = line.slice(0, brace < 0 ? space : brace);
    const value = Number(line.slice(space + 1));
    if (SUMS.has(name)) read.sums.set(name, (read.sums.get(name) ?? 0) + value);
    if (name === FORWARDED) add(read.passed, /reason="([^"]*)"/.exec(line)?.[1], value);
    const latencies = late[LATENCIES.get(name)];
    if (latencies) add(latencies, Number(/le="([^"]*)"/.exec(line)?.[1].replace("+Inf", "Infinity")), value);
    if (name === "kube_fanout_build_info") read.version = /version="([^"]*)"/.exec(line)?.[1] ?? "";
  }
  return read;
}

function add(sums, key, value) {
  if (key !== undefined) sums.set(key, (sums.get(key) ?? 0) + value);
}

/** The difference between two polls of the same process. */
class Between {
  constructor(before, now) {
    this.now = now;
    const started = (look) => look?.sums.get("process_start_time_seconds");
    const isSame = before && started(before) === started(now);
    this.before = isSame ? before : null;
    this.elapsed = this.before ? Math.max((now.at - before.at) / 1000, 0.001) : 0;
  }

  /** The rate of a counter per second; null if unknown. */
  rate(name) {
    return this.before ? this.grown(this.before.sums, this.now.sums, name) / this.elapsed : null;
  }

  grown(before, now, key) {
    return Math.max(0, (now.get(key) ?? 0) - (before.get(key) ?? 0));
  }

  /** A latency ("delivery" or "age") at a quantile, estimated from the buckets; null without events. */
  late(what, share) {
    if (!this.before) return null;
    const bounds = [...this.now.late[what].keys()].sort((a, b) => a - b);
    const grown = bounds.map((bound) => this.grown(this.before.late[what], this.now.late[what], bound));
    const wanted = share * (grown.at(-1) ?? 0);
    if (wanted === 0) return null;
    const at = grown.findIndex((upTo) => upTo >= wanted);
    const [low, from] = at > 0 ? [bounds[at - 1], grown[at - 1]] : [0, 0];
    const high = Number.isFinite(bounds[at]) ? bounds[at] : low;
    return 1000 * (low + (high - low) * (wanted - from) / Math.max(grown[at] - from, 1));
  }
}
