//! The metrics of listeners and their connections.

use metrics::{counter, describe_counter, describe_gauge, gauge};

/// Describes the metrics of this module.
pub fn describe() {
    describe_gauge!("kube_fanout_connections_open", "open connections, including those of probes and scrapers");
    describe_gauge!(
        "kube_fanout_certificate_expiry_timestamp_seconds",
        "expiry of a certificate of the proxy, in seconds since 1970"
    );
    describe_counter!(
        "kube_fanout_connections_failed_total",
        "connections that failed or were closed by a limit, by reason"
    );
}

/// Sets the expiry of a certificate, in seconds since 1970.
pub(super) fn certificate_expires(what: &'static str, expiry: f64) {
    gauge!("kube_fanout_certificate_expiry_timestamp_seconds", "what" => what).set(expiry);
}

base::labelled_enum! {
    /// The reason that a connection failed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum ConnectionFailure {
        /// The TLS handshake failed, for example because client and server share no version or signature scheme.
        Handshake = "handshake",
        /// The TLS handshake took too long.
        HandshakeTimeout = "handshake_timeout",
        /// The client sent no request in time.
        Silent = "no_request",
        /// The connection was idle, and another connection needed its slot.
        Evicted = "evicted",
        /// The listener was full, its owner had the most connections, and a connection of another owner arrived.
        OverFairShare = "over_fair_share",
        /// The listener was full when the connection was accepted, and no other owner had more connections than its
        /// own.
        ListenerFull = "listener_full",
        /// The connection was closing, and the client sent too many further requests.
        Unauthenticated = "unauthenticated",
        /// The unix socket does not accept connections of this user of the machine.
        ForeignUid = "uid_not_allowed",
    }
}

impl ConnectionFailure {
    pub(super) fn count(self) {
        counter!("kube_fanout_connections_failed_total", "reason" => self.as_str()).increment(1);
    }
}

/// Changes the number of open connections by `more`, which may be negative.
pub(super) fn open_connections(more: f64) {
    gauge!("kube_fanout_connections_open").increment(more);
}
