use super::{Plane, settled};

/// One scrape, in the text format of Prometheus.
pub struct Metrics {
    text: String,
}

impl Metrics {
    pub fn new(text: String) -> Self {
        Self { text }
    }

    /// The sum over all series of `name` that have these labels. An integer, because tests only read counts.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        self.series(name, labels).map(|(_, value)| value).sum()
    }

    /// Every series of `name` that has these labels: all its labels as text, and its value.
    pub fn series<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = (&'a str, i64)> {
        self.text.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (own, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            let has = |(name, value): &(&str, &str)| {
                let label = format!("{name}=\"{value}\"");
                own.split(',').any(|pair| pair == label)
            };
            let value: f64 = value.trim().parse().ok()?;
            labels.iter().all(has).then_some((own, format!("{value:.0}").parse().ok()?))
        })
    }
}

impl Plane {
    /// The number of open watches of a resource, as the apiserver counts them.
    pub async fn open_watches(&self, resource: &str) -> i64 {
        let labels = [("resource", resource), ("verb", "WATCH")];
        self.metrics().await.sum("apiserver_longrunning_requests", &labels)
    }

    /// The same number once it is stable: the watches of earlier tests are closed and the apiserver's own are open.
    pub async fn settled_watches(&self, resource: &str) -> i64 {
        settled("the apiserver's watches", async || self.open_watches(resource).await).await
    }
}
