//! A timeline around a violation: a row for each client, one for the true history, one for the writers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use super::html::{escaped, put};
use super::record::{CallRecord, HistoryRecord, OperationId};

/// The time in nanoseconds that the page shows before and after the violation's records.
const AROUND_NS: u64 = 400_000_000;
/// The maximum time span of the page in nanoseconds. If the violation's records are further apart, the end is shown.
const SPAN_NS_MAX: u64 = 15_000_000_000;
const ROWS_MAX: usize = 40;
/// The beginning of a request's line.
const CALL: &str = "{\"call\"";
const MARKS_MAX: usize = 6_000;
const WIDTH: f64 = 1100.0;
const LEFT: f64 = 190.0;
const ROW: f64 = 20.0;
const TOP: f64 = 24.0;

/// The rows of a timeline, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TimelineRow {
    Truth,
    Writers,
    /// The client whose operation shows the violation.
    Culprit(u32),
    Client(u32),
}

/// An element that is drawn in a timeline.
#[derive(Debug)]
struct TimelineMark {
    who: TimelineRow,
    from_ns: u64,
    to_ns: u64,
    class: &'static str,
    is_wrong: bool,
    /// The tooltip of the element.
    about: String,
}

struct TimelineSpan {
    from_ns: u64,
    to_ns: u64,
}

/// Draws the timeline around the records of these lines, and prints the records.
///
/// # Errors
/// If the record cannot be read.
pub(super) fn timeline(record: &Path, lines: &[u32], op: Option<OperationId>) -> io::Result<String> {
    let mut cited = Vec::new();
    each(record, |number, text, record| {
        if lines.contains(&number) {
            cited.push((number, text.to_owned(), time(record)));
        }
    })?;
    // The request may be much older; its results show the violation.
    let answers = cited.iter().filter(|(_, text, _)| !text.starts_with(CALL)).filter_map(|(.., at)| *at);
    let span = TimelineSpan::around(answers).or_else(|| TimelineSpan::around(cited.iter().filter_map(|(.., at)| *at)));
    let Some(span) = span else { return Ok(String::new()) };
    let mut drawing = TimelineDrawing { span, lines, op, calls: HashMap::new(), marks: Vec::new(), faults: Vec::new() };
    each(record, |number, text, record| drawing.take(number, text, record))?;
    let mut out = "<h2>Timeline of the first violation</h2>\n<div class=\"wide\">".to_owned();
    out.push_str(&drawing.svg());
    out.push_str("</div>\n<p class=\"dim\">Lines of the record:</p>\n<pre>");
    for (number, text, _) in cited {
        put(&mut out, format_args!("{number}: {}\n", escaped(&text)));
    }
    out.push_str("</pre>\n");
    Ok(out)
}

/// Calls `with` for every record with its line, counted from 1.
fn each(record: &Path, mut with: impl FnMut(u32, &str, &HistoryRecord)) -> io::Result<()> {
    for (number, line) in (1..).zip(BufReader::new(File::open(record)?).lines()) {
        let line = line?;
        if let Ok(record) = serde_json::from_str(&line) {
            with(number, &line, &record);
        }
    }
    Ok(())
}

/// Returns the time of a record, or of its end.
fn time(record: &HistoryRecord) -> Option<u64> {
    Some(match record {
        HistoryRecord::Call(call) => call.at_ns,
        HistoryRecord::Return(answer) => answer.at_ns,
        HistoryRecord::Event(event) => event.at_ns,
        HistoryRecord::End(end) => end.at_ns,
        HistoryRecord::Written(write) => write.return_ns,
        HistoryRecord::Truth(change) => change.at_ns,
        HistoryRecord::UpstreamRequest(request) => request.at_ns,
        HistoryRecord::Fault(fault) => fault.to_ns,
        HistoryRecord::Run(_) | HistoryRecord::Known(_) | HistoryRecord::Compacted(_) | HistoryRecord::Window(_) => {
            return None;
        }
    })
}

impl TimelineSpan {
    fn around(times: impl Iterator<Item = u64>) -> Option<Self> {
        let (first, last) = times.fold(None, |span: Option<(u64, u64)>, at| {
            let (first, last) = span.unwrap_or((at, at));
            Some((first.min(at), last.max(at)))
        })?;
        let from_ns = first.max(last.saturating_sub(SPAN_NS_MAX)).saturating_sub(AROUND_NS);
        Some(Self { from_ns, to_ns: last + AROUND_NS })
    }

    fn has(&self, from_ns: u64, to_ns: u64) -> bool {
        from_ns <= self.to_ns && self.from_ns <= to_ns
    }

    fn x(&self, at_ns: u64) -> f64 {
        let at = at_ns.clamp(self.from_ns, self.to_ns) - self.from_ns;
        LEFT + at as f64 / (self.to_ns - self.from_ns) as f64 * (WIDTH - LEFT - 10.0)
    }
}

struct TimelineDrawing<'a> {
    span: TimelineSpan,
    lines: &'a [u32],
    op: Option<OperationId>,
    /// The operations in progress, with their lines.
    calls: HashMap<OperationId, (u32, CallRecord)>,
    marks: Vec<TimelineMark>,
    faults: Vec<(u64, u64, String)>,
}

impl TimelineDrawing<'_> {
    fn take(&mut self, line: u32, text: &str, record: &HistoryRecord) {
        let is_wrong = self.lines.contains(&line);
        match record {
            HistoryRecord::Call(call) => drop(self.calls.insert(call.op, (line, call.clone()))),
            HistoryRecord::Return(answer) => match self.calls.get(&answer.op) {
                Some((_, call)) if call.verb == super::record::ReadVerb::Watch && answer.code == 200 => {}
                _ => self.over(answer.op, answer.at_ns, is_wrong, &format!("response {}", answer.code)),
            },
            HistoryRecord::End(end) => self.over(end.op, end.at_ns, is_wrong, &format!("ended: {:?}", end.how)),
            HistoryRecord::Event(event) => {
                let Some(who) = self.who(event.op) else { return };
                self.mark(TimelineMark {
                    who,
                    class: event.kind.as_str(),
                    is_wrong,
                    ..TimelineMark::at(event.at_ns, text)
                });
            }
            HistoryRecord::Truth(change) => {
                let (who, class) = (TimelineRow::Truth, change.kind.as_str());
                self.mark(TimelineMark { who, class, is_wrong, ..TimelineMark::at(change.at_ns, text) });
            }
            HistoryRecord::Written(write) => {
                let (from_ns, to_ns, about) = (write.call_ns, write.return_ns, text.to_owned());
                self.mark(TimelineMark { who: TimelineRow::Writers, from_ns, to_ns, class: "bar", is_wrong, about });
            }
            HistoryRecord::Fault(fault) if self.span.has(fault.from_ns, fault.to_ns) => {
                self.faults.push((fault.from_ns, fault.to_ns, fault.name.clone()));
            }
            _ => {}
        }
    }

    fn who(&self, op: OperationId) -> Option<TimelineRow> {
        let (_, call) = self.calls.get(&op)?;
        let culprit = self.op.and_then(|op| self.calls.get(&op)).map(|(_, call)| call.client);
        Some(if culprit == Some(call.client) {
            TimelineRow::Culprit(call.client)
        } else {
            TimelineRow::Client(call.client)
        })
    }

    /// Ends an operation and draws its bar.
    fn over(&mut self, op: OperationId, to_ns: u64, is_wrong: bool, how: &str) {
        let Some(who) = self.who(op) else { return };
        let Some((line, call)) = self.calls.get(&op) else { return };
        let is_wrong = is_wrong || self.lines.contains(line);
        let about = about(call, how);
        let from_ns = call.at_ns;
        if self.op != Some(op) {
            self.calls.remove(&op);
        }
        self.mark(TimelineMark { who, from_ns, to_ns, class: "bar", is_wrong, about });
    }

    fn mark(&mut self, mark: TimelineMark) {
        if self.span.has(mark.from_ns, mark.to_ns) && (self.marks.len() < MARKS_MAX || mark.is_wrong) {
            self.marks.push(mark);
        }
    }

    fn svg(mut self) -> String {
        // Operations still in progress at the end of the record.
        let open: Vec<_> = self.calls.keys().copied().filter(|op| Some(*op) != self.op).collect();
        let end = self.span.to_ns;
        open.into_iter().for_each(|op| self.over(op, end, false, "still open"));
        let who: BTreeSet<_> = self.marks.iter().map(|mark| mark.who).collect();
        let culprits = |who: &&TimelineRow| matches!(who, TimelineRow::Client(_));
        let spare = ROWS_MAX.saturating_sub(who.iter().filter(|who| !culprits(who)).count());
        let fixed = who.iter().filter(|who| !culprits(who)).copied();
        let rows: Vec<_> = fixed.chain(who.iter().filter(culprits).take(spare).copied()).collect();
        let rows: BTreeMap<_, _> = rows.into_iter().zip(0_u32..).collect();
        let height = TOP + ROW * (rows.len() as f64 + 1.0);
        let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">\n");
        for (from_ns, to_ns, name) in &self.faults {
            let (x, to) = (self.span.x(*from_ns), self.span.x(*to_ns));
            let (wide, high) = ((to - x).max(1.0), height - TOP);
            put(&mut out, format_args!("<rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{high}\" "));
            put(&mut out, format_args!("class=\"fault\"><title>fault: {}</title></rect>\n", escaped(name)));
        }
        self.axis(&mut out, height);
        for (who, row) in &rows {
            let y = TOP + ROW * (f64::from(*row) + 0.7);
            put(&mut out, format_args!("<text x=\"0\" y=\"{y:.1}\">{}</text>\n", name(*who)));
        }
        // Bars are first, so that events are drawn on top of them.
        self.marks.sort_by_key(|mark| (mark.class != "bar", mark.from_ns));
        for mark in &self.marks {
            if let Some(row) = rows.get(&mark.who) {
                draw(&mut out, &self.span, mark, TOP + ROW * (f64::from(*row) + 0.5));
            }
        }
        out.push_str("</svg>\n");
        out
    }

    fn axis(&self, out: &mut String, height: f64) {
        const STEPS: u64 = 8;
        for step in 0..=STEPS {
            let at_ns = self.span.from_ns + (self.span.to_ns - self.span.from_ns) / STEPS * step;
            let (x, seconds) = (self.span.x(at_ns), at_ns as f64 / 1e9);
            put(out, format_args!("<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{height}\" class=\"grid\"/>"));
            put(out, format_args!("<text x=\"{:.1}\" y=\"14\" class=\"dim\">{seconds:.3} s</text>\n", x - 20.0));
        }
    }
}

impl TimelineMark {
    /// Creates a timeline mark at one moment, without a duration.
    fn at(at_ns: u64, about: &str) -> Self {
        let about = about.to_owned();
        Self { who: TimelineRow::Truth, from_ns: at_ns, to_ns: at_ns, class: "mark", is_wrong: false, about }
    }
}

fn about(call: &CallRecord, how: &str) -> String {
    let CallRecord { op, verb, path, query, encoding, transport, .. } = call;
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    format!("operation {op}: {verb:?} {path}{query} ({encoding:?}, {transport:?}), {how}")
}

fn name(who: TimelineRow) -> String {
    match who {
        TimelineRow::Truth => "true history".to_owned(),
        TimelineRow::Writers => "writers".to_owned(),
        TimelineRow::Culprit(client) => format!("client {client} (violation)"),
        TimelineRow::Client(client) => format!("client {client}"),
    }
}

fn draw(out: &mut String, span: &TimelineSpan, mark: &TimelineMark, y: f64) {
    let (x, to) = (span.x(mark.from_ns), span.x(mark.to_ns));
    let class = if mark.is_wrong { format!("{} wrong", mark.class) } else { mark.class.to_owned() };
    if mark.class == "bar" {
        let (wide, top) = ((to - x).max(1.5), y - 5.0);
        put(
            out,
            format_args!("<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"10\" class=\"{class}\">"),
        );
        put(out, format_args!("<title>{}</title></rect>\n", escaped(&mark.about)));
    } else {
        put(out, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" class=\"{class}\">"));
        put(out, format_args!("<title>{}</title></circle>\n", escaped(&mark.about)));
    }
}
