use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::GrantError;

/// Describes the metrics of this module.
pub fn describe() {
    describe_counter!("kube_fanout_auth_reviews_total", "token and access reviews, by kind and result");
    describe_counter!("kube_fanout_auth_tokens_verified_total", "tokens verified without a review, by result");
    describe_counter!(
        "kube_fanout_auth_refused_total",
        "requests refused by authentication or authorization, by reason"
    );
    describe_counter!("kube_fanout_auth_revoked_total", "permissions of open watches that ended, by reason");
    describe_gauge!("kube_fanout_auth_leases", "access decisions that open watches depend on");
    describe_gauge!(
        "kube_fanout_auth_outage_grace_active",
        "1 while watches continue although their permissions cannot be checked"
    );
    describe_gauge!("kube_fanout_auth_policy_watched", "1 while changes of RBAC are watched");
    describe_counter!("kube_fanout_auth_local_decisions_total", "access decisions with decide: rbac, by result");
    describe_gauge!("kube_fanout_auth_local_decisions_active", "1 while RBAC is evaluated here");
    describe_counter!(
        "kube_fanout_auth_comparisons_total",
        "local decisions and verified tokens that were compared with the apiserver's, by kind and result"
    );
    describe_gauge!(
        "kube_fanout_auth_local_decisions_disagreed",
        "1 while nothing of a kind is decided here because the apiserver denied what was allowed here"
    );
}

pub(super) fn reviewed(kind: &'static str, result: &'static str) {
    counter!("kube_fanout_auth_reviews_total", "kind" => kind, "result" => result).increment(1);
}

pub(super) fn token_verified(result: &'static str) {
    counter!("kube_fanout_auth_tokens_verified_total", "result" => result).increment(1);
}

pub(super) fn refused(error: &GrantError) {
    counter!("kube_fanout_auth_refused_total", "reason" => error.as_str()).increment(1);
}

pub(super) fn revoked(error: &GrantError) {
    counter!("kube_fanout_auth_revoked_total", "reason" => error.as_str()).increment(1);
}

/// Changes the number of leases by `more`, which may be negative.
pub(super) fn leases(more: f64) {
    gauge!("kube_fanout_auth_leases").increment(more);
}

pub(super) fn outage(leases: usize) {
    gauge!("kube_fanout_auth_outage_grace_active").set(if leases == 0 { 0.0 } else { 1.0 });
}

pub(super) fn policy_watched(is_watched: bool) {
    gauge!("kube_fanout_auth_policy_watched").set(if is_watched { 1.0 } else { 0.0 });
}

pub(super) fn decided_locally(result: &'static str) {
    counter!("kube_fanout_auth_local_decisions_total", "result" => result).increment(1);
}

pub(super) fn local_decisions_active(is_active: bool) {
    gauge!("kube_fanout_auth_local_decisions_active").set(if is_active { 1.0 } else { 0.0 });
}

pub(super) fn compared(kind: &'static str, result: &'static str) {
    counter!("kube_fanout_auth_comparisons_total", "kind" => kind, "result" => result).increment(1);
}

pub(super) fn local_decisions_disagreed(kind: &'static str, disagreed: bool) {
    gauge!("kube_fanout_auth_local_decisions_disagreed", "kind" => kind).set(if disagreed { 1.0 } else { 0.0 });
}
