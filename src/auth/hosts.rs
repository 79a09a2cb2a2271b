/// The names that this proxy answers to where the socket is all that protects it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Besides the loopback ones.
    names: Vec<String>,
}

/// The Host header names a machine that this socket is not for: somebody's web page reaches for a local port
/// (reliability.md T17).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host {host:?} is not served here")]
pub struct WrongHost {
    pub host: String,
}

impl Hosts {
    pub fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// Checks the Host header of a TCP request. `kubectl proxy` has the same rule.
    pub fn check(&self, host: &str) -> Result<(), WrongHost> {
        let name = without_port(host);
        let known = matches!(name, "localhost" | "127.0.0.1" | "[::1]") || self.names.iter().any(|h| h == name);
        if known { Ok(()) } else { Err(WrongHost { host: host.to_owned() }) }
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
        let hosts = Hosts::new(vec!["proxy.internal".to_owned()]);
        for host in ["localhost", "localhost:8001", "127.0.0.1:8001", "[::1]:8001", "[::1]", "proxy.internal:443"] {
            assert_eq!(hosts.check(host), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:8001", "localhost.evil.example", "127.0.0.1.nip.io:80", ""] {
            assert!(hosts.check(host).is_err(), "{host}");
        }
    }
}
