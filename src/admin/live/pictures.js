// The numbers at the top, with their charts.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 48;

/** A chart of the last minutes of one number, or of two on one scale. */
class Picture {
  constructor(lines) {
    this.points = Array.from({ length: lines }, () => []);
    this.svg = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({
      class: "picture", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    })) this.svg.setAttribute(key, value);
    this.line("floor").setAttribute("d", `M0 ${HEIGHT - 1}H${WIDTH}`);
    this.paths = this.points.map((_, nth) => this.line(`line-${nth}`));
  }

  line(name) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    this.svg.append(path);
    return path;
  }

  push(values) {
    this.points.forEach((points, nth) => {
      points.push(values[nth]);
      if (points.length > POINTS_MAX) points.shift();
    });
  }

  most() {
    return Math.max(0, ...this.points.flat().filter((value) => value !== null));
  }

  /** Draws the newest point at the right edge, and a gap where a value is unknown. */
  draw() {
    const most = this.most() || 1;
    this.paths.forEach((path, nth) => {
      const points = this.points[nth];
      let drawn = "";
      let isGap = true;
      points.forEach((value, at) => {
        if (value === null) {
          isGap = true;
          return;
        }
        const x = WIDTH - (points.length - 1 - at) * WIDTH / (POINTS_MAX - 1);
        const y = HEIGHT - 1 - value / most * (HEIGHT - 4);
        drawn += `${isGap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
        isGap = false;
      });
      path.setAttribute("d", drawn);
    });
  }
}

/** The numbers at the top: the large one, the small ones, and the lines of the chart. */
const TILES = [
  {
    name: "Client watches", shown: count, lines: ["watches"],
    values: (of) => [of.now.sums.get("kube_fanout_watches_open") ?? 0],
    small: (of) => {
      const [watches, streams] = ["kube_fanout_watches_open", "kube_fanout_upstream_streams_open"]
        .map((name) => of.now.sums.get(name) ?? 0);
      const each = watches > streams && streams > 0
        ? `; ${rounded(watches / streams)} client watches per upstream stream` : "";
      return `${count(streams)} upstream ${streams === 1 ? "stream" : "streams"}${each}`;
    },
  },
  {
    name: "Events delivered", shown: rate, lines: ["delivered"],
    values: (of) => [of.rate("kube_fanout_watch_events_total")],
    small: (of) => `${rate(of.rate("kube_fanout_upstream_events_total"))} from upstream, ` +
      `${bytes(of.rate("kube_fanout_watch_bytes_total"))}/s to clients`,
  },
  {
    name: "Delivery latency", shown: millis, lines: ["p50", "p99"],
    values: (of) => [of.late("delivery", 0.5), of.late("delivery", 0.99)],
    small: (of) => `p50; p99 ${millis(of.late("delivery", 0.99))}; age on receipt: p99 ${millis(of.late("age", 0.99))}`,
  },
  {
    name: "Requests served from the cache", shown: rate, lines: ["from the cache", "forwarded"],
    values: (of) => [of.rate("kube_fanout_served_total"), of.rate(FORWARDED)],
    small: (of) => `${rate(of.rate(FORWARDED))} forwarded, ${rate(of.rate("kube_fanout_refused_total"))} refused`,
  },
  {
    name: "Upstream requests", shown: rate, lines: ["upstream", "clients"],
    values: (of) => [of.rate("kube_fanout_upstream_requests_total"), ofClients(of)],
    small: (of) => `for ${rate(ofClients(of))} client requests; ` +
      `${bytes(of.rate("kube_fanout_upstream_body_bytes_total"))}/s from upstream`,
  },
  {
    name: "CPU", shown: (cores) => (cores === null ? "–" : `${whole.format(cores * 100)} %`), lines: ["of one core"],
    values: (of) => [of.rate("process_cpu_seconds_total")],
    small: (of) => {
      const [held, budget, resident] = ["kube_fanout_memory_used_bytes", "kube_fanout_memory_budget_bytes",
        "process_resident_memory_bytes"].map((name) => bytes(of.now.sums.get(name)));
      return `of one core; memory ${resident} resident, cache ${held} of ${budget}`;
    },
  },
];

function ofClients(of) {
  const parts = ["kube_fanout_served_total", FORWARDED, "kube_fanout_refused_total"].map((name) => of.rate(name));
  return parts.includes(null) ? null : parts.reduce((sum, part) => sum + part, 0);
}

class Tile {
  constructor(kind, root) {
    this.kind = kind;
    this.picture = new Picture(kind.lines.length);
    this.big = element("p", { class: "big" }, "–");
    this.small = element("p", { class: "small" });
    const tile = element("div", { class: "tile" });
    tile.append(element("h3", {}, kind.name), this.big, this.small, this.picture.svg);
    const key = element("p", { class: "key" });
    kind.lines.forEach((line, nth) => key.append(element("span", { class: nth === 0 ? "first" : "other" }, line)));
    this.most = element("span", { class: "most" });
    key.append(this.most);
    tile.append(key);
    root.append(tile);
  }

  show(of, draws) {
    const values = this.kind.values(of);
    this.picture.push(values);
    say(this.big, this.kind.shown(values[0]));
    say(this.small, this.kind.small(of));
    if (draws) this.draw();
  }

  gap() {
    this.picture.push(this.kind.lines.map(() => null));
    this.picture.draw();
  }

  draw() {
    this.picture.draw();
    const most = this.kind.shown(this.picture.most());
    say(this.most, `peak ${most}`);
    label(this.picture.svg, `${this.kind.name}, last two minutes: peak ${most}, now ${this.big.textContent}`);
  }
}
