use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use http::Method;
use serde_json::Value;

use super::cases::{Case, Cast, REVIEW, REVIEWS, Wire};
use crate::bed::{Http, Protocol, RequestSpec, Target};

/// An identity as upstream reports it: name and groups.
type Name = (String, BTreeSet<String>);

/// Knows the identity of each caller, and collects violations.
pub struct Judge {
    /// The identity of each caller; `None` if upstream cannot authenticate it.
    own: Vec<Option<Name>>,
    pub wrong: Vec<String>,
}

/// Content that only permitted callers may receive.
const TREASURES: [&str; 2] = ["\"kind\":\"SecretList\"", "\"kind\":\"NodeList\""];

impl Judge {
    pub async fn new(direct: &Http, target: &Target, cast: &Cast) -> Self {
        let mut own = Vec::new();
        for identity in &cast.callers {
            let http = Http::new(target.by(identity), Protocol::H1);
            let request = RequestSpec::get(REVIEWS).with(Method::POST, "application/json", REVIEW.to_owned());
            let answer = http.fetch(request).await;
            own.push(answer.status.is_success().then(|| name(&answer.value()["status"]["userInfo"])));
        }
        // Upstream itself must report these identities, and must know some of the callers.
        assert!(own.iter().flatten().count() >= 4, "{own:?}");
        assert_eq!(direct.get("/readyz").await.status, 200);
        Self { own, wrong: Vec::new() }
    }

    /// Checks that a response is for its caller or for no user.
    pub fn check_response(&mut self, case: &Case, response: &[u8]) {
        let text = String::from_utf8_lossy(response);
        if let Some(treasure) = TREASURES.iter().find(|treasure| text.contains(**treasure)) {
            self.note(case, &format!("the answer has {treasure}"));
        }
        for part in text.split("\"userInfo\":").skip(1) {
            let user = serde_json::Deserializer::from_str(part).into_iter::<Value>().next().and_then(Result::ok);
            let Some(user) = user else { continue };
            self.judge(case, "the answer is for", &name(&user));
        }
    }

    /// Checks which requests arrived upstream. Returns how many of the cases did.
    pub fn read(&mut self, cases: &[Case], log: &[Value]) -> u64 {
        let mut seen = HashMap::<&str, BTreeMap<&str, &Value>>::new();
        for event in log {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            let Some((_, mark)) = uri.split_once("mark=") else { continue };
            let mark = mark.split(['&', ' ', '#']).next().unwrap_or_default();
            let id = event["auditID"].as_str().expect("an id");
            seen.entry(mark).or_default().insert(id, event);
        }
        let mut arrived = 0;
        for case in cases {
            let marks: Vec<_> = seen.keys().filter(|mark| mark.starts_with(&case.mark)).copied().collect();
            arrived += u64::from(!marks.is_empty());
            for mark in marks {
                let allowed = case.sound.iter().filter(|sound| *sound == mark).count();
                if seen[mark].len() > allowed {
                    self.note(case, &format!("{mark} arrived {} times, {allowed} allowed", seen[mark].len()));
                }
                for event in seen[mark].values() {
                    self.examine(case, event);
                }
            }
        }
        arrived
    }

    fn examine(&mut self, case: &Case, event: &Value) {
        let uri = event["requestURI"].as_str().unwrap_or_default();
        if case.target.as_ref().is_some_and(|target| target != uri) {
            self.note(case, &format!("{uri:?} arrived instead of {:?}", case.target));
        }
        let user = [&event["impersonatedUser"], &event["user"]].into_iter().find(|user| user["username"].is_string());
        if let Some(user) = user {
            self.judge(case, "it arrived from", &name(user));
        }
    }

    fn judge(&mut self, case: &Case, what: &str, user: &Name) {
        let own = self.own[case.caller].as_ref().filter(|_| !case.ambiguous);
        let is_nobody = user.0 == "system:anonymous" && user.1.contains("system:unauthenticated");
        if own != Some(user) && !is_nobody {
            let own = format!("{own:?}");
            self.note(case, &format!("{what} {user:?}, and the caller is {own}"));
        }
    }

    fn note(&mut self, case: &Case, what: &str) {
        let mut sent = String::from_utf8_lossy(&case.bytes).into_owned();
        sent.truncate(sent.char_indices().nth(1500).map_or(sent.len(), |(at, _)| at));
        self.wrong.push(format!("{} ({}): {what}\n{sent:?}", case.family, case.mark));
    }
}

/// Whether the log has more than the receipt of each request. Only a later stage contains the impersonated user.
pub fn is_complete(log: &[Value]) -> bool {
    let ids = |of: fn(&Value) -> bool| -> HashSet<_> {
        log.iter().filter(|event| of(event)).map(|event| event["auditID"].as_str().expect("an id")).collect()
    };
    let received = ids(|event| event["requestURI"].as_str().is_some_and(|uri| uri.contains("mark=")));
    received.is_subset(&ids(|event| event["stage"] != "RequestReceived"))
}

fn name(user: &Value) -> Name {
    let groups = user["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    (user["username"].as_str().unwrap_or_default().to_owned(), groups.map(str::to_owned).collect())
}

/// For statistics: the status of an HTTP/1 response, or whether there were other bytes or none.
pub fn status(wire: Wire, response: &[u8]) -> String {
    match (wire, response) {
        (_, []) => "nothing".to_owned(),
        (Wire::Http1, [b'H', b'T', b'T', b'P', ..]) => {
            String::from_utf8_lossy(&response[9..response.len().min(12)]).into()
        }
        (Wire::Http2, _) if String::from_utf8_lossy(response).contains("userInfo") => "h2 201".to_owned(),
        (Wire::Http2, _) => "h2".to_owned(),
        _ => "noise".to_owned(),
    }
}
