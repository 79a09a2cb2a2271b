//! Content negotiation, for a server that only writes JSON.

use super::kinds::ServedKind;
use super::status::DemoStatus;

/// How the response is to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Plain,
    Table,
    /// `PartialObjectMetadata`, or its list.
    Partial {
        list: bool,
    },
}

/// The `Accept` header, as far as it concerns us.
#[derive(Clone, Debug)]
pub(crate) struct Accept {
    clauses: Vec<Clause>,
}

#[derive(Clone, Debug)]
struct Clause {
    media: String,
    /// Parameters but `q`, in the order in which they came.
    params: Vec<(String, String)>,
    quality: f32,
}

impl Accept {
    pub(crate) fn parse(header: Option<&str>) -> Self {
        let text = header.map(str::trim).filter(|text| !text.is_empty()).unwrap_or("application/json");
        let mut clauses: Vec<_> = text.split(',').map(Clause::parse).collect();
        let wild = |clause: &Clause| clause.media.contains('*');
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(wild(a).cmp(&wild(b))));
        Self { clauses }
    }

    /// The form for objects of a kind, or the 406 of whichever layer refuses first.
    pub(crate) fn form(&self, kind: &ServedKind, watch: bool) -> Result<Form, DemoStatus> {
        let produced = ["application/json", "*/*"];
        if !kind.custom && !self.clauses.iter().any(|clause| produced.contains(&clause.media.as_str())) {
            let text =
                "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch";
            return Err(DemoStatus::not_acceptable(text, true));
        }
        self.clauses.iter().find_map(|clause| clause.form(watch)).ok_or_else(|| {
            let offered = if watch { "application/json;stream=watch" } else { "application/json" };
            DemoStatus::not_acceptable(format!("only the following media types are accepted: {offered}"), false)
        })
    }

    /// Errors are negotiated without conversions; if only conversions were asked for, they are written raw.
    pub(crate) fn takes_plain_json(&self) -> bool {
        self.clauses.iter().any(|clause| clause.is_json() && clause.param("as").is_none())
    }

    pub(crate) fn wants_pretty(&self) -> bool {
        self.clauses.iter().any(|clause| clause.param("pretty") == Some("1"))
    }

    /// Aggregated discovery is asked for with this one conversion.
    pub(crate) fn wants_aggregated_discovery(&self) -> bool {
        self.clauses.iter().any(|clause| {
            clause.param("as") == Some("APIGroupDiscoveryList")
                && clause.param("g") == Some("apidiscovery.k8s.io")
                && clause.param("v") == Some("v2")
        })
    }
}

impl Clause {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut params: Vec<_> = parts
            .filter_map(|part| part.split_once('='))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
            .collect();
        let quality =
            params.iter().find(|(key, _)| key == "q").and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0);
        params.retain(|(key, _)| key != "q");
        Self { media, params, quality }
    }

    fn param(&self, key: &str) -> Option<&str> {
        self.params.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    fn is_json(&self) -> bool {
        matches!(self.media.as_str(), "application/json" | "application/*" | "*/*")
    }

    fn form(&self, watch: bool) -> Option<Form> {
        if !self.is_json() || self.param("stream").is_some_and(|stream| stream != "watch" || !watch) {
            return None;
        }
        let meta = self.param("g") == Some("meta.k8s.io") && matches!(self.param("v"), Some("v1" | "v1beta1"));
        match self.param("as") {
            None => Some(Form::Plain),
            Some("Table") if meta => Some(Form::Table),
            Some("PartialObjectMetadata") if meta => Some(Form::Partial { list: false }),
            Some("PartialObjectMetadataList") if meta => Some(Form::Partial { list: true }),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, PODS, by_plural};
    use super::*;

    #[test]
    fn the_best_clause_that_we_can_serve_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io";
        for (header, form) in [
            ("", Form::Plain),
            ("*/*", Form::Plain),
            ("application/vnd.kubernetes.protobuf,application/json", Form::Plain),
            ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json", Form::Plain),
            ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", Form::Table),
            (table, Form::Table),
            ("application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json", Form::Plain),
        ] {
            assert_eq!(Accept::parse(Some(header)).form(&KINDS[PODS], false).unwrap(), form, "{header}");
        }
        assert!(!Accept::parse(Some(table)).takes_plain_json());
    }

    #[test]
    fn what_we_do_not_write_is_406() {
        let widgets = &KINDS[by_plural("widgets").unwrap()];
        let refused = |kind, header| Accept::parse(Some(header)).form(kind, false).err().map(|status| status.code);
        assert_eq!(refused(&KINDS[PODS], "application/vnd.kubernetes.protobuf"), Some(406));
        assert_eq!(refused(&KINDS[PODS], "application/*"), Some(406));
        assert_eq!(refused(widgets, "application/*"), None);
        assert_eq!(refused(widgets, "application/vnd.kubernetes.protobuf"), Some(406));
    }
}
