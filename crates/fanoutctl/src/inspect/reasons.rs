/// What a reason means, and what can be done: for those who ask why.
pub(super) fn meaning(reason: &str) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == reason);
    found.map_or("docs/METRICS.md says what this means", |(_, meaning)| meaning)
}

const MEANINGS: [(&str, &str); 41] = [
    // Why a watch ends.
    ("timeout", "its time was up (timeoutSeconds, or half an hour to an hour); a client opens the next one by itself"),
    ("closed", "the client went away"),
    ("feed_ended", "its resource is gone upstream, or the proxy may not read it any more"),
    (
        "expired",
        "its place left the history (410), so the client lists again: it read too slowly, came back too late, or \
         upstream began a new history. Often: look for a client that is stalled, or make window.* larger",
    ),
    ("too_large", "the state that it asked for did not come in time (504): is the feed without its stream?"),
    ("drained", "the proxy was going away; the client goes on elsewhere from where it was"),
    ("upgraded", "its client is a proxy, and upstream is of another release: it goes on, and hears so"),
    ("revoked", "its client may not read this any more (403), or its credential is over (401)"),
    ("stalled", "its client took nothing of the state that it began with for a minute"),
    ("memory", "the state that it began with kept too much memory alive: its client reads too slowly"),
    // Why a watch ends, and why a request passes through.
    ("underivable", "what it asked for cannot be derived from what is held; the log has a line about the object"),
    // Why a request passes through.
    ("non_resource", "it is for no resource: /version, /healthz, discovery, OpenAPI"),
    ("verb", "it is no read"),
    ("subresource", "subresources are not held: status, scale, log, exec"),
    ("spelling", "its path or its query is spelled in a way that only upstream reads for certain"),
    ("impersonation", "it wants to be taken for somebody else, which upstream decides"),
    ("anonymous", "it has no credential"),
    ("ungranted", "what its caller may is narrower than what is held"),
    ("unknown_resource", "discovery does not know this resource"),
    ("aggregated", "an aggregated apiserver serves this resource"),
    ("not_watchable", "this resource cannot be watched, so it cannot be held"),
    ("representation", "this representation is not served from memory: YAML, CBOR, indented JSON"),
    ("table", "a plain kubectl get asks for a Table, whose cells only upstream prints"),
    ("too_old", "it goes on from before what is held"),
    ("not_acceptable", "upstream has words for what it accepts"),
    ("parameter", "it has a parameter that only upstream understands"),
    ("consistent_get", "a GET without resourceVersion asks for the most recent state, and few ask so at once"),
    ("exact_version", "it asks for the state at a version that is not the present one"),
    (
        "continue",
        "it goes on with a list that began upstream, or whose state is no longer held (feeds.heldSnapshotAge)",
    ),
    ("not_cached", "nobody reads this resource here, and one object is not worth a feed"),
    ("syncing", "the feed was not filled in time (feeds.syncWait): the proxy was cold, or upstream slow"),
    ("forbidden", "the proxy itself may not list and watch this: give it the right, or leave it so"),
    ("not_chosen", "feeds.resources does not name this resource"),
    ("sensitive", "this kind is held only where feeds.sensitive names it"),
    ("out_of_scope", "it is for more than this node's objects, and no more is held (node)"),
    ("unavailable", "there is no feed of this now; /debug/feeds and the log say why"),
    ("over_budget", "this resource does not fit into feeds.memoryMebibytes"),
    ("no_proof", "it could not be proven in time that what is held is current: is upstream slow, or the stream gone?"),
    ("dear_selector", "its selectors compare too much"),
    // Where more than one reason of a client is told at once.
    ("none", "no reason was given"),
    ("unauthenticated", "its credential was not accepted"),
];

/// What a refusal means, by its status code.
pub(super) fn refusal(code: &str) -> &'static str {
    match code {
        "400" => "the request is malformed, as upstream would say",
        "401" => "its credential is nobody's",
        "403" => "upstream does not let its user do this, or the address does not (execOnLoopback, allowedHosts)",
        "410" => "the version that it goes on from is no longer known: the client lists again",
        "429" => "a limit is reached (limits.*, delegated.*), or the feed is being filled: the client tries again",
        "503" => "it could not be found out who or what this is, upstream is away, or the proxy was going away",
        "500" | "502" | "504" => "upstream did not answer, or not in time",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_is_explained_once() {
        let names: BTreeSet<_> = MEANINGS.iter().map(|(reason, _)| reason).collect();
        assert_eq!(names.len(), MEANINGS.len());
        let document = include_str!("../../../../docs/METRICS.md");
        let (_, ends) =
            document.split_once("`kube_fanout_watches_ended_total`, why a watch ends:").expect("a paragraph");
        let (ends, _) = ends.split_once("\n\n").expect("its end");
        for reason in ends.split(" · ").filter_map(|item| item.split('`').nth(1)) {
            assert!(names.contains(&reason), "{reason}");
        }
        // A flat list: what the proxy says of what it passes on.
        let code = include_str!("../../../../src/serve/route.rs");
        let (_, list) = code.split_once("Self::NonResource => \"").expect("the reasons");
        let (list, _) = list.split_once("\n        }\n").expect("their end");
        for reason in format!("Self::NonResource => \"{list}").lines().filter_map(|line| line.split('"').nth(1)) {
            assert!(names.contains(&reason), "{reason}");
        }
    }
}
