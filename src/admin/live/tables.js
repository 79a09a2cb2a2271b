// The tables, and their columns.

/** A table with sortable columns that reuses its rows. A cell is text, or text and a class. */
class Table {
  constructor(root, caption, columns, order, sorted) {
    Object.assign(this, { columns, order, sorted });
    const table = element("table", { role: "table", "aria-label": caption });
    const head = element("tr", { role: "row" });
    this.heads = columns.map((column) => this.head(column, head));
    const thead = element("thead", { role: "rowgroup" });
    thead.append(head);
    this.body = element("tbody", { role: "rowgroup" });
    table.append(thead, this.body);
    root.append(table);
    this.mark();
  }

  head(column, row) {
    const head = element("th", { role: "columnheader", scope: "col" });
    if (column.by) {
      const button = element("button", { type: "button" }, column.name);
      button.addEventListener("click", () => this.sort(column));
      head.append(button);
    } else {
      head.textContent = column.name;
    }
    if (column.isNumber) head.className = "number";
    row.append(head);
    return head;
  }

  /** Sorts numbers in descending and texts in ascending order first; a second click reverses the order. */
  sort(column) {
    const isAgain = this.order.column === column.key;
    this.order = { column: column.key, isDown: isAgain ? !this.order.isDown : Boolean(column.isNumber) };
    this.mark();
    this.sorted();
  }

  mark() {
    this.columns.forEach((column, nth) => {
      const isIt = column.by && column.key === this.order.column;
      if (isIt) this.heads[nth].setAttribute("aria-sort", this.order.isDown ? "descending" : "ascending");
      else this.heads[nth].removeAttribute("aria-sort");
    });
  }

  /** Sorts rows in the page. */
  arrange(rows) {
    const by = this.columns.find((column) => column.key === this.order.column)?.by;
    if (!by) return rows;
    const sign = this.order.isDown ? -1 : 1;
    const areNumbers = (a, b) => typeof a === "number" && typeof b === "number";
    const compare = (a, b) => (areNumbers(a, b) ? a - b : String(a).localeCompare(String(b)));
    return [...rows].sort((a, b) => sign * compare(by(a), by(b)));
  }

  show(rows) {
    const shown = rows.slice(0, ROWS_MAX);
    while (this.body.rows.length > shown.length) this.body.deleteRow(-1);
    shown.forEach((row, at) => this.fill(this.body.rows[at] ?? this.added(), row));
    return shown.length;
  }

  added() {
    const row = element("tr", { role: "row" });
    for (const column of this.columns) {
      const cell = element("td", { role: "cell", "data-label": column.name });
      cell.append(element("span"));
      row.append(cell);
    }
    this.body.append(row);
    return row;
  }

  fill(row, of) {
    this.columns.forEach((column, nth) => {
      const cell = row.cells[nth];
      const [text, mark] = [column.text(of)].flat();
      say(cell.firstChild, text);
      if (cell.firstChild.className !== (mark ?? "")) cell.firstChild.className = mark ?? "";
      const kind = column.isNumber ? "number" : column.isName ? "name" : "";
      if (cell.className !== kind) cell.className = kind;
    });
  }
}

const text = (key) => (row) => row[key] ?? "–";
const number = (key, name, shown = count) =>
  ({ key, name, isNumber: true, by: (row) => row[key] ?? 0, text: (row) => shown(row[key]) });

const MARKS = { live: "good", idle: "good", syncing: "odd", stale: "odd", sending: "good", stalled: "bad" };

function feedName(feed) {
  return [feed.resource, feed.namespace && `in ${feed.namespace}`, feed.selector].filter(Boolean).join(" ");
}

const FEED_COLUMNS = [
  { key: "feed", name: "Feed", isName: true, by: feedName, text: feedName },
  {
    key: "state", name: "State", by: (feed) => `${feed.state} ${feed.staleSeconds ?? 0}`,
    text: (feed) => [feed.staleSeconds === null ? feed.state : `${feed.state} for ${seconds(feed.staleSeconds)}`,
      MARKS[feed.state] ?? "bad"],
  },
  {
    key: "version", name: "Version", isNumber: true, by: (feed) => Number(feed.resourceVersion),
    text: text("resourceVersion"),
  },
  number("objects", "Objects"),
  number("readers", "Readers"),
  {
    key: "ring", name: "History", isNumber: true, by: (feed) => feed.windowEvents,
    text: (feed) => (feed.windowEvents === 0 ? "empty" : `${count(feed.windowEvents)} in ${seconds(feed.windowSpanSeconds)}`),
  },
  number("memoryBytes", "Memory", bytes),
  { key: "encoding", name: "Encoding", by: text("encoding"), text: text("encoding") },
];

/** The keys of these columns are sort orders of the proxy, which sorts all watches, not only those shown. */
const WATCH_COLUMNS = [
  { key: "agent", name: "Agent", isName: true, by: text("userAgent"), text: text("userAgent") },
  { key: "user", name: "User", by: text("user"), text: text("user") },
  {
    key: "resource", name: "Resource", by: text("resource"),
    text: (watch) => watch.resource + (watch.namespace === null ? "" : ` in ${watch.namespace}`) +
      (watch.selectors === "none" ? "" : ` by ${watch.selectors}`),
  },
  {
    key: "behind", name: "Behind", isNumber: true, by: (watch) => watch.eventsBehind,
    text: (watch) => (watch.eventsBehindIsLowerBound ? "≥ " : "") + count(watch.eventsBehind),
  },
  {
    key: "since", name: "State", by: (watch) => watch.stateSeconds,
    text: (watch) => [
      watch.state === "sending" ? watch.state : `${watch.state} for ${seconds(watch.stateSeconds)}`, MARKS[watch.state],
    ],
  },
  { key: "version", name: "Last version sent", isNumber: true, text: text("resourceVersion") },
  { ...number("bytesSent", "Sent", bytes), key: "sent" },
  { ...number("openSeconds", "Open", seconds), key: "open" },
  { key: "as", name: "Encoding, protocol", text: (watch) => `${watch.representation}, ${watch.protocol}` },
];

const COST_COLUMNS = [
  { key: "cause", name: "Cause", isName: true, by: text("cause"), text: (row) => row.cause.replaceAll("_", " ") },
  number("rate", "Request rate", rate),
  number("requests", "Requests"),
  number("streamsOpen", "Streams open"),
  number("bodyBytes", "Received", bytes),
];

const PASSED_COLUMNS = [
  { key: "reason", name: "Reason", isName: true, by: text("reason"), text: (row) => row.reason.replaceAll("_", " ") },
  number("rate", "Rate", rate),
  number("times", "Requests"),
];
