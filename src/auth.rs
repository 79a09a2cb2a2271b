//! Who is asking, and what they may read.
//!
//! **Invariants.** No byte of a cached object leaves without a [`Grant`], and only this module can make one. What is
//! not certain is refused.

use crate::kube::RequestInfo;

/// How callers are authenticated and authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The caller is the proxy's own identity, as with `kubectl proxy`: for sockets that only this machine can reach.
    None,
}

/// Who is asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Whoever can reach the socket acts as the proxy itself.
    Ourselves,
}

/// Permission to read what one request asks for: verb, resource, namespace, name and selectors.
///
/// Its fields are private, so only [`Gate::grant`] makes one; reads from the cache require one by type.
#[derive(Debug, Clone)]
pub struct Grant {
    caller: Caller,
}

/// Decides.
#[derive(Debug, Clone)]
pub struct Gate {
    mode: Mode,
    hosts: Vec<String>,
}

/// The Host header names a machine that this socket is not for: somebody's web page reaches for a local port
/// (reliability.md T17).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host {host:?} is not served here")]
pub struct WrongHost {
    pub host: String,
}

impl Gate {
    /// `hosts`: names besides the loopback ones that a Host header may carry.
    pub fn new(mode: Mode, hosts: Vec<String>) -> Self {
        Self { mode, hosts }
    }

    /// Checks the Host header of a TCP request. `kubectl proxy` has the same rule.
    pub fn check_host(&self, host: &str) -> Result<(), WrongHost> {
        let name = without_port(host);
        let known = matches!(name, "localhost" | "127.0.0.1" | "[::1]") || self.hosts.iter().any(|h| h == name);
        if known { Ok(()) } else { Err(WrongHost { host: host.to_owned() }) }
    }

    pub fn authenticate(&self) -> Caller {
        match self.mode {
            Mode::None => Caller::Ourselves,
        }
    }

    /// The caller's permission for this request.
    ///
    /// Upstream has let the proxy's identity read the feed, and here the caller is that identity.
    pub fn grant(&self, caller: &Caller, _request: &RequestInfo) -> Grant {
        match (self.mode, caller) {
            (Mode::None, Caller::Ourselves) => Grant { caller: caller.clone() },
        }
    }
}

impl Grant {
    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_names_are_hosts() {
        let gate = Gate::new(Mode::None, vec!["proxy.internal".to_owned()]);
        for host in ["localhost", "localhost:8001", "127.0.0.1:8001", "[::1]:8001", "[::1]", "proxy.internal:443"] {
            assert_eq!(gate.check_host(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:8001", "localhost.evil.example", "127.0.0.1.nip.io:80", ""] {
            assert!(gate.check_host(host).is_err(), "{host}");
        }
    }
}
