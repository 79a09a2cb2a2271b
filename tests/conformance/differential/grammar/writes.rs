//! Draws writes that change nothing, because they are dry runs or must fail.

use serde_json::{Value, json};

use super::super::probe::{Over, Parameter, Probe};
use super::super::world::{NAMESPACES, Served};
use super::Grammar;

const KINDS_OF_PATCH: [(&str, &str); 8] = [
    ("application/merge-patch+json", r#"{"metadata":{"labels":{"app":"z"}}}"#),
    ("application/strategic-merge-patch+json", r#"{"metadata":{"labels":{"app":"z"}}}"#),
    ("application/json-patch+json", r#"[{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]"#),
    ("application/json-patch+json", r#"[{"op":"test","path":"/nowhere","value":1}]"#),
    ("application/apply-patch+yaml", "metadata: {labels: {app: z}}"),
    ("application/merge-patch+json", "{"),
    ("application/nonsense", "{}"),
    ("", "{}"),
];

const BODIES: [&str; 7] = ["", "{", "null", "[]", "nonsense", r#"{"kind":"Nonsense","apiVersion":"v1"}"#, "{}"];

impl<'a> Grammar<'a> {
    pub(super) fn write(&mut self, resource: &'a Served) -> Probe {
        let (namespace, name) = self.object(resource);
        let within = if namespace.is_empty() { NAMESPACES[0].to_owned() } else { namespace };
        let collection = resource.collection(&within);
        let object = format!("{collection}/{name}");
        let (method, path, content, body) = match self.random.u32(..16) {
            // Services are excluded, because the apiserver gives a new Service random addresses.
            0..=3 if resource.name != "services" => ("POST", collection, self.content(), self.new_object(resource)),
            4..=6 => ("PUT", object, self.content(), self.replacement(resource)),
            11..=12 => ("DELETE", object, "application/json", self.deletion()),
            13 => ("DELETE", collection, "application/json", self.deletion()),
            14 => ("POST", object, "application/json", "{}".to_owned()),
            15 => ("PUT", collection, "application/json", "{}".to_owned()),
            _ => {
                let (content, body) = KINDS_OF_PATCH[self.random.usize(..KINDS_OF_PATCH.len())];
                ("PATCH", object, content, body.to_owned())
            }
        };
        let mut query = vec![Parameter::Value("dryRun", "All".to_owned())];
        if self.one_in(4) {
            query.push(Parameter::Value("fieldManager", "differential".to_owned()));
        }
        if self.one_in(8) {
            let how = self.pick(&["Strict", "Warn", "Ignore", "nonsense"]);
            query.push(Parameter::Value("fieldValidation", how.to_owned()));
        }
        if method == "DELETE" && self.one_in(2) {
            self.selectors(&mut query, resource);
        }
        self.oddities(&mut query);
        let mut headers = self.headers(false, false);
        headers.retain(|(name, _)| *name != "content-type");
        if !content.is_empty() {
            headers.push(("content-type", content.to_owned()));
        }
        let over = if self.one_in(2) { Over::H1 } else { Over::H2 };
        Probe { method, path, query, headers, body, over }
    }

    fn content(&mut self) -> &'static str {
        let kinds = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/plain", ""];
        if self.one_in(6) { self.pick(&kinds) } else { "application/json" }
    }

    /// A new object, mostly a valid one.
    fn new_object(&mut self, resource: &Served) -> String {
        let Some(example) = resource.example.as_ref().filter(|_| !self.one_in(4)) else {
            return self.pick(&BODIES).to_owned();
        };
        let mut object = example.clone();
        if !self.one_in(4) {
            let metadata = json!({"name": "new", "labels": {"app": "new"}});
            object["metadata"] = metadata;
        }
        self.dented(object)
    }

    fn replacement(&mut self, resource: &Served) -> String {
        let Some(example) = resource.example.as_ref().filter(|_| !self.one_in(5)) else {
            return self.pick(&BODIES).to_owned();
        };
        let mut object = example.clone();
        match self.random.u32(..4) {
            0 => object["metadata"]["resourceVersion"] = json!("1"),
            1 => object["metadata"]["labels"] = json!({"app": "z"}),
            2 => object["metadata"]["name"] = json!("other"),
            _ => {}
        }
        self.dented(object)
    }

    /// Sometimes adds an invalid or unknown field to an object.
    fn dented(&mut self, mut object: Value) -> String {
        match self.random.u32(..10) {
            0 => object["spec"] = json!("no spec"),
            1 => object["unknown"] = json!({"field": 1}),
            2 => object["metadata"]["labels"] = json!({"-": "bad"}),
            _ => {}
        }
        object.to_string()
    }

    /// Options in the body replace the query parameters, so the dry run must be in them.
    fn deletion(&mut self) -> String {
        let grace = self.pick(&["0", "30", "-1"]);
        format!(r#"{{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"gracePeriodSeconds":{grace}}}"#)
    }
}
