/// A page of metrics in the text format, from which single values are read.
pub(super) struct MetricsText(pub(super) String);

impl MetricsText {
    /// Returns the sum of all series with a given metric name.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts and bytes: none is negative, and none is beyond what a float holds exactly"
    )]
    pub(super) fn sum(&self, name: &str) -> u64 {
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let is_named = series == name || series.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
            is_named.then(|| value.parse::<f64>().ok())?
        };
        self.0.lines().filter_map(value).sum::<f64>().max(0.0) as u64
    }

    /// Returns the value of a label and the value of each series with a given metric name.
    pub(super) fn by_label<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.strip_prefix(name)?.strip_prefix('{')?.strip_suffix('}')?;
            let (_, rest) = labels.split_once(&format!("{label}=\""))?;
            Some((rest.split_once('"')?.0, value.parse().ok()?))
        })
    }

    /// Returns the value of a label of the first series with a given metric name.
    pub(super) fn label(&self, name: &str, label: &str) -> Option<&str> {
        let line = self.0.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')))?;
        let (_, rest) = line.split_once(&format!("{label}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_exact_metric_name() {
        let text = "# TYPE a gauge\na{x=\"1\",v=\"7.1\"} 2\na{x=\"2\"} 3\nab 5\na_b{x=\"1\"} 7\nplain 9\n";
        let metrics = MetricsText(text.to_owned());
        assert_eq!((metrics.sum("a"), metrics.sum("ab"), metrics.sum("plain"), metrics.sum("no")), (5, 5, 9, 0));
        assert_eq!(metrics.by_label("a", "x").collect::<Vec<_>>(), [("1", 2.0), ("2", 3.0)]);
        assert_eq!((metrics.label("a", "v"), metrics.label("plain", "v")), (Some("7.1"), None));
    }
}
