//! Selectors that are expensive and match nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use super::{ATTACKERS, Answers, Field, attack, callers, put};
use crate::bed::{Http, Protocol, RequestSpec};

/// The maximum selector length, minus a few bytes for the rest.
const SELECTOR_BYTES: usize = (16 << 10) - 32;

/// Requests the whole state, which is the start of a watch-list.
const INITIAL: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                       &timeoutSeconds=1";

/// Returns `part(0),part(1),…` up to the maximum length.
fn joined(part: impl Fn(usize) -> String) -> String {
    let mut selector = part(0);
    for at in 1.. {
        let next = part(at);
        if selector.len() + 1 + next.len() > SELECTOR_BYTES {
            break;
        }
        selector = format!("{selector},{next}");
    }
    selector
}

/// Queries of a collection, each expensive in a different way.
fn queries() -> Vec<String> {
    let labels = |selector: String| format!("labelSelector={}", escaped(&selector));
    let values = joined(|at| format!("v{at}"));
    let duplicates = labels(joined(|_| "!aa".to_owned()));
    let keys = labels(joined(|at| format!("!a{at}")));
    let fields = format!("fieldSelector={}", escaped(&joined(|at| format!("metadata.name!=x{at}"))));
    let never = "app%3Dnobody%2Capp%21%3Dsomebody";
    vec![
        format!("resourceVersion=0&{duplicates}"),
        format!("resourceVersion=0&{keys}"),
        format!("resourceVersion=0&{}", labels(format!("aa notin ({values})"))),
        format!("resourceVersion=0&{}", labels(format!("app in ({values})"))),
        format!("resourceVersion=0&{fields}"),
        format!("resourceVersion=0&labelSelector={never}"),
        format!("resourceVersion=0&limit=1&{duplicates}"),
        format!("{INITIAL}&{duplicates}"),
        format!("{INITIAL}&{keys}"),
        format!("watch=true&resourceVersion=0&timeoutSeconds=1&labelSelector={never}"),
    ]
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let escaped = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escaped).collect()
}

/// A selector of `!aa,!aa,…` over a large collection, and others with a similar cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn expensive_selectors_do_not_delay_others() {
    let Some(field) = Field::lay("").await else { return };
    let queries = queries();
    let clients: Vec<_> = callers(&field.bed, ATTACKERS)
        .iter()
        .map(|identity| Http::new(field.proxy.target().by(identity), Protocol::H2))
        .collect();
    let request = |query: &str| RequestSpec::get(&format!("{}?{query}", field.pods));
    let of = |query: &str| query.split(['=', '%', '&']).filter(|word| word.len() < 20).collect::<Vec<_>>().join(" ");
    let besiege = async |query: &str, floor: Option<f64>| {
        let what: String = of(query).chars().take(60).collect();
        let attack = async |over: Arc<AtomicBool>| {
            let answers = Answers::default();
            let clients = &clients;
            let blow = |who: usize, _, answers: Answers| async move {
                put(&clients[who], request(query), &answers).await;
            };
            attack(ATTACKERS, &over, &answers, blow).await;
            answers
        };
        field.besiege(&what, floor, attack).await
    };
    // Only the size of this one is expensive.
    let states = besiege(INITIAL, Some(f64::INFINITY)).await;
    for query in &queries {
        besiege(query, query.starts_with(INITIAL).then_some(states)).await;
    }
    // All of them together, page by page.
    field
        .besiege("all kinds", None, async |over| {
            let answers = Answers::default();
            let (clients, queries) = (&clients, &queries);
            let blow = |who: usize, at: usize, answers: Answers| async move {
                let found = put(&clients[who], request(&queries[(who + at) % queries.len()]), &answers).await;
                let next = found.as_ref().and_then(|list| list["metadata"]["continue"].as_str().map(str::to_owned));
                if let Some(next) = next.filter(|next| !next.is_empty()) {
                    put(&clients[who], request(&format!("limit=1&continue={}", escaped(&next))), &answers).await;
                }
            };
            attack(ATTACKERS, &over, &answers, blow).await;
            answers
        })
        .await;
}

/// The answers to such requests equal the apiserver's.
#[tokio::test]
async fn expensive_selectors_return_the_same_as_upstream() {
    let Some(field) = Field::lay("").await else { return };
    for query in queries().iter().filter(|query| !query.contains("watch=true")) {
        let request = RequestSpec::get(&format!("{}?{}", field.pods, query.replace("resourceVersion=0&", "")));
        let (ours, theirs) =
            (field.proxy.client().fetch(request.clone()).await, field.bed.direct().fetch(request).await);
        assert_eq!(ours.status, theirs.status, "{query}");
        let without_version = |mut list: Value| {
            list["metadata"].as_object_mut().expect("a list").remove("resourceVersion");
            list["metadata"].as_object_mut().expect("a list").remove("continue");
            list
        };
        assert_eq!(without_version(ours.value()), without_version(theirs.value()), "{query}");
    }
}
