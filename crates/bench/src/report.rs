use std::fmt::Write as _;

use super::compare::{BenchResults, VariantFigures};
use super::outcome::CATALOGUE;
use super::text::{number, title};

const TEMPLATE: &str = include_str!("report.html");
/// The figures that the report shows as a chart.
const DRAWN: [&str; 12] = [
    "deliveries_per_s",
    "requests_per_s",
    "latency_p50_ms",
    "latency_p99_ms",
    "request_p99_ms",
    "synced_p99_ms",
    "cpu_us_per_delivery",
    "cpu_ms_per_request",
    "cpu_ms_per_informer",
    "memory_kib_per_watch",
    "memory_mib",
    "memory_peak_mib",
];
/// The number of colours in the template.
const COLOURS: usize = 6;
const WIDTH: f64 = 560.0;
const ROW: f64 = 26.0;

/// Formats results as one self-contained page.
pub fn html(results: &BenchResults) -> String {
    let BenchResults { scenario, about, command, machine, plans, outcomes, cells, .. } = results;
    let mut charts = percentiles(results);
    DRAWN.iter().for_each(|name| bars(&mut charts, cells, name));
    let mut notes = String::new();
    for outcome in outcomes {
        for note in &outcome.notes {
            let of = [outcome.side.as_str(), outcome.variant.as_str(), note].join(" ");
            put(&mut notes, format_args!("<p><b>Note.</b> {}</p>\n", escaped(&of)));
        }
    }
    let plans = serde_json::to_string_pretty(plans).unwrap_or_default();
    let parts = [
        ("{{notes}}", notes),
        ("{{charts}}", charts),
        ("{{table}}", table(results)),
        ("{{title}}", escaped(&format!("fanoutctl bench: {scenario}"))),
        ("{{about}}", escaped(about)),
        ("{{machine}}", escaped(&machine.to_string())),
        ("{{command}}", escaped(&command.join(" "))),
        ("{{plans}}", escaped(&plans)),
    ];
    parts.into_iter().fold(TEMPLATE.to_owned(), |page, (place, text)| page.replace(place, &text))
}

/// Appends formatted text. Writing to a String does not fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Draws one figure of every cell, as bars.
fn bars(out: &mut String, cells: &[VariantFigures], name: &str) {
    let rows: Vec<_> =
        cells.iter().enumerate().filter_map(|(n, cell)| Some((n, cell, cell.figures.of(name)?))).collect();
    let most = rows.iter().map(|(.., value)| *value).fold(0.0, f64::max);
    let Some((_, unit, _, what)) = CATALOGUE.iter().find(|(known, ..)| *known == name).filter(|_| most > 0.0) else {
        return;
    };
    let height = ROW * (rows.len() as f64 * 2.0) + 8.0;
    put(out, format_args!("<figure><figcaption><b>{name}</b> <small>{}</small></figcaption>", escaped(what)));
    put(out, format_args!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}\">\n"));
    for (row, (n, cell, value)) in rows.iter().enumerate() {
        let y = row as f64 * ROW * 2.0;
        let (long, colour) = ((value.max(0.0) / most * (WIDTH - 110.0)).max(1.0), n % COLOURS);
        put(out, format_args!("<text x=\"0\" y=\"{:.0}\" class=\"dim\">{}</text>", y + 15.0, escaped(&cell.title())));
        put(
            out,
            format_args!("<rect x=\"0\" y=\"{:.0}\" width=\"{long:.1}\" height=\"20\" class=\"f{colour}\"/>", y + 20.0),
        );
        put(
            out,
            format_args!("<text x=\"{:.1}\" y=\"{:.0}\">{} {unit}</text>\n", long + 6.0, y + 35.0, number(*value)),
        );
    }
    out.push_str("</svg></figure>\n");
}

/// Draws the latency of every cell's first run by percentile. Lower and flatter is better.
fn percentiles(results: &BenchResults) -> String {
    let of = |cell: &VariantFigures| {
        let same = results.outcomes.iter().find(|run| run.side == cell.side && run.variant == cell.variant);
        same.map(|run| run.percentiles.clone()).unwrap_or_default()
    };
    let curves: Vec<_> = results.cells.iter().map(|cell| (cell.title(), of(cell))).collect();
    let values: Vec<_> = curves.iter().flat_map(|(_, curve)| curve.iter().map(|(_, ms)| ms.max(0.01))).collect();
    if values.is_empty() {
        return String::new();
    }
    let low = values.iter().copied().fold(f64::MAX, f64::min).log10().floor();
    let high = values.iter().copied().fold(0.01, f64::max).log10().ceil().max(low + 1.0);
    let (left, top, plot_width, plot_height) = (52.0, 8.0, WIDTH - 62.0, 250.0);
    let x = |percentile: f64| left + nines(percentile) / 4.3 * plot_width;
    let y = |ms: f64| top + (high - ms.max(0.01).log10()) / (high - low) * plot_height;
    let height = top + plot_height + 30.0 + 18.0 * curves.len() as f64;
    let mut out = "<figure><figcaption><b>latency by percentile</b> <small>milliseconds, both axes logarithmic</small>"
        .to_owned();
    put(
        &mut out,
        format_args!("</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"latency\">\n"),
    );
    let mut decade = low;
    while decade <= high {
        let (ms, at) = (10_f64.powf(decade), y(10_f64.powf(decade)));
        put(
            &mut out,
            format_args!("<line x1=\"{left}\" x2=\"{WIDTH}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/>"),
        );
        put(&mut out, format_args!("<text x=\"0\" y=\"{:.1}\" class=\"dim\">{}</text>\n", at + 4.0, number(ms)));
        decade += 1.0;
    }
    for percentile in [50.0, 90.0, 99.0, 99.9, 99.99] {
        let (at, below) = (x(percentile) - 12.0, top + plot_height + 16.0);
        put(&mut out, format_args!("<text x=\"{at:.1}\" y=\"{below:.1}\" class=\"dim\">p{percentile}</text>\n"));
    }
    for (n, (title, curve)) in curves.iter().enumerate() {
        let points: Vec<_> = curve.iter().map(|(at, ms)| format!("{:.1},{:.1}", x(*at), y(*ms))).collect();
        let (colour, legend) = (n % COLOURS, top + plot_height + 36.0 + 18.0 * n as f64);
        put(&mut out, format_args!("<polyline points=\"{}\" class=\"s{colour}\"/>", points.join(" ")));
        put(
            &mut out,
            format_args!(
                "<rect x=\"{left}\" y=\"{:.1}\" width=\"12\" height=\"12\" class=\"f{colour}\"/>",
                legend - 10.0
            ),
        );
        put(&mut out, format_args!("<text x=\"{}\" y=\"{legend:.1}\">{}</text>\n", left + 18.0, escaped(title)));
    }
    out.push_str("</svg></figure>\n");
    out
}

/// Returns how many nines a percentile has. The number is limited, so that 100 is finite.
fn nines(percentile: f64) -> f64 {
    (-(1.0 - percentile / 100.0).max(5e-5).log10()).max(0.0)
}

fn table(results: &BenchResults) -> String {
    let BenchResults { cells, ratios, .. } = results;
    let mut out = "<table><tr><th>figure</th>".to_owned();
    let titles = cells.iter().map(VariantFigures::title).chain(ratios.iter().map(|ratio| title(results, ratio)));
    titles.for_each(|title| put(&mut out, format_args!("<th>{}</th>", escaped(&title))));
    out.push_str("<th>description</th></tr>\n");
    for (name, unit, _, what) in CATALOGUE {
        if cells.iter().all(|cell| cell.figures.of(name).is_none()) {
            continue;
        }
        put(&mut out, format_args!("<tr><td><code>{name}</code></td>"));
        for cell in cells {
            let value = cell.figures.of(name).map(|value| format!("{} {unit}", number(value))).unwrap_or_default();
            put(&mut out, format_args!("<td>{value}</td>"));
        }
        for ratio in ratios {
            let value = ratio.figures.of(name).map(|value| format!("× {}", number(value))).unwrap_or_default();
            put(&mut out, format_args!("<td>{value}</td>"));
        }
        put(&mut out, format_args!("<td class=\"dim\">{}</td></tr>\n", escaped(what)));
    }
    out.push_str("</table>");
    out
}

#[cfg(test)]
mod tests {
    use super::super::compare::FigureRatios;
    use super::super::outcome::{BenchFigures, BenchRunOutcome};
    use super::super::process::MachineInfo;
    use super::*;

    fn results() -> BenchResults {
        let mut figures = BenchFigures::default();
        figures.put("latency_p99_ms", 12.5);
        figures.put("cpu_us_per_delivery", 7.0);
        let cell = |side: &str| VariantFigures {
            variant: String::new(),
            side: side.to_owned(),
            rounds: 1,
            figures: figures.clone(),
        };
        let outcome = |side: &str| BenchRunOutcome {
            side: side.to_owned(),
            target: "https://127.0.0.1:1".to_owned(),
            variant: String::new(),
            round: 0,
            interrupted: false,
            figures: figures.clone(),
            percentiles: vec![(50.0, 1.0), (99.0, 12.5), (100.0, 200.0)],
            cipher: None,
            notes: vec!["a <note>".to_owned()],
        };
        BenchResults {
            scenario: "gentle".to_owned(),
            about: "<script>".to_owned(),
            command: ["bench", "--target", "https://127.0.0.1:1"].map(str::to_owned).to_vec(),
            machine: MachineInfo::default(),
            plans: vec![],
            outcomes: vec![outcome("a & b"), outcome("proxy")],
            cells: vec![cell("a & b"), cell("proxy")],
            ratios: vec![FigureRatios { of: 1, over: 0, figures: figures.clone() }],
        }
    }

    #[test]
    fn report_is_complete_and_loads_no_external_resources() {
        let page = html(&results());
        assert!(!page.contains("{{"), "a place was not filled");
        for outside in ["src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "<object"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for text in
            ["a &amp; b", "&lt;script&gt;", "a &lt;note&gt;", "<polyline", "12.5 ms", "--target https://127.0.0.1:1"]
        {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("<svg").count(), 3, "the curve, and a chart for each figure that was measured");
    }

    #[test]
    fn percentile_axis_positions_increase() {
        assert!(nines(50.0) < nines(90.0) && nines(99.99) < nines(100.0));
        assert!((nines(99.0) - 2.0).abs() < 1e-9);
    }
}
