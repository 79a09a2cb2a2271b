/// Returns the meaning of a metric's reason, and what to do about it.
pub(super) fn meaning(reason: &str) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == reason);
    found.map_or("see docs/METRICS.md", |(_, meaning)| meaning)
}

const MEANINGS: [(&str, &str); 41] = [
    // Reasons of ended watches.
    ("timeout", "its time was up (timeoutSeconds, or half an hour to an hour); a client opens the next one by itself"),
    ("client_closed", "the client went away"),
    ("feed_ended", "its resource is gone upstream, or the proxy may not read it any more"),
    (
        "expired",
        "its position left the history (410) and the client relists: it read too slowly, resumed too late, or upstream \
         has a new history. If it happens often, look for a stalled client or increase window.*",
    ),
    ("too_large", "the state that it asked for did not come in time (504): is the feed without its stream?"),
    ("drained", "the proxy was going away; the client goes on elsewhere from where it was"),
    ("upstream_upgraded", "its client is a proxy, and upstream is of another release: it goes on, and hears so"),
    ("revoked", "its client may not read this any more (403), or its credential is over (401)"),
    ("stalled", "its client took nothing of the state that it began with for a minute"),
    ("memory_pressure", "the state that it began with kept too much memory alive: its client reads too slowly"),
    // A reason of both ended watches and forwarded requests.
    ("not_derivable", "what it asked for cannot be derived from what is held; the log has a line about the object"),
    // Reasons of forwarded requests.
    ("non_resource", "it is for no resource: health, OpenAPI, or discovery that is not cached or not allowed"),
    ("verb", "it is no read"),
    ("subresource", "subresources are not held: status, scale, log, exec"),
    ("ambiguous_url", "its path or its query is spelled in a way that only upstream reads for certain"),
    ("impersonation", "it wants to be taken for somebody else, which upstream decides"),
    ("anonymous", "it has no credential"),
    ("permission_mismatch", "what its caller may is narrower than what is held"),
    ("unknown_resource", "discovery does not know this resource"),
    ("aggregated", "an aggregated apiserver serves this resource"),
    ("not_watchable", "this resource cannot be watched, so it cannot be held"),
    ("representation", "this representation is not served from memory: YAML, CBOR, indented JSON"),
    ("table", "a plain kubectl get asks for a Table, whose cells only upstream prints"),
    ("too_old", "it goes on from before what is held"),
    ("not_acceptable", "upstream has words for what it accepts"),
    ("unsupported_parameter", "it has a parameter that only upstream understands"),
    ("consistent_get", "a GET without resourceVersion asks for the most recent state, and few ask so at once"),
    ("exact_version", "it asks for the state at a version that is not the present one"),
    (
        "continue",
        "it continues a list that started upstream, or whose snapshot is no longer kept (feeds.heldSnapshotAge)",
    ),
    ("not_cached", "nobody reads this resource here, and one object is not worth a feed"),
    ("syncing", "the feed was not filled in time (feeds.syncWait): the proxy was cold, or upstream slow"),
    ("forbidden", "the proxy itself may not list and watch this: give it the right, or leave it so"),
    ("not_in_resources", "feeds.resources does not name this resource"),
    ("sensitive", "this kind is held only where feeds.sensitive names it"),
    ("out_of_scope", "it is for more than this node's objects, and no more is held (node)"),
    ("unavailable", "there is no feed of this now; /debug/feeds and the log say why"),
    ("over_budget", "this resource does not fit into feeds.memoryMebibytes"),
    ("no_proof", "it could not be proven in time that what is held is current: is upstream slow, or the stream gone?"),
    ("expensive_selector", "its selectors compare too much"),
    // Not used by this release as reasons of ended watches or forwarded requests.
    ("none", "no reason was given"),
    ("unauthenticated", "its credentials were rejected"),
];

/// Returns the meaning of a refusal's status code.
pub(super) fn refusal(code: &str) -> &'static str {
    match code {
        "400" => "the request is malformed; upstream would reject it too",
        "401" => "its credentials are invalid",
        "403" => {
            "its user lacks the permission, or the listener does not allow the request (execOnLoopback, allowedHosts)"
        }
        "410" => "its resourceVersion is too old: the client relists",
        "429" => "a limit was reached (limits.*, delegated.*), or the feed is syncing: the client retries",
        "503" => "the caller could not be authenticated, upstream was unreachable, or the proxy was shutting down",
        "500" | "502" | "504" => "upstream did not respond in time",
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
        let (_, ends) = document.split_once("of `kube_fanout_watches_ended_total`:\n\n").expect("a table");
        let (ends, _) = ends.split_once("\n\n").expect("its end");
        let reasons: Vec<_> = ends.lines().skip(2).filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(reasons.len(), ends.lines().count() - 2, "each row names a reason");
        for reason in reasons {
            assert!(names.contains(&reason), "{reason}");
        }
        // The reasons of forwarded requests, as a flat list.
        let code = include_str!("../../../../src/serve/route.rs");
        let (_, list) = code.split_once("Self::NonResource => \"").expect("the reasons");
        let (list, _) = list.split_once("\n        }\n").expect("their end");
        for reason in format!("Self::NonResource => \"{list}").lines().filter_map(|line| line.split('"').nth(1)) {
            assert!(names.contains(&reason), "{reason}");
        }
    }
}
