use std::net::IpAddr;

use crate::net::is_loopback;

/// The host names that are accepted on a socket where every client has permissions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    /// The accepted host names besides the loopback ones, in lower case.
    names: Vec<String>,
    /// Whether any IP address is accepted as a host. A page can use a name that resolves to this machine, but no
    /// address other than its own.
    addresses: bool,
}

/// A host and an optional port, as in a Host header or an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) host: Host,
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Address(IpAddr),
    /// A host name, in lower case.
    Name(String),
}

impl AllowedHosts {
    /// Allows loopback addresses, `localhost` and the given names, as `kubectl proxy` does.
    pub fn new(names: &[String]) -> Self {
        Self { names: names.iter().map(|name| name.to_ascii_lowercase()).collect(), addresses: false }
    }

    /// Also allows any IP address, because a relay of a scrape or a probe may keep the original Host header.
    #[must_use]
    pub fn or_any_address(self) -> Self {
        Self { addresses: true, ..self }
    }

    pub(super) fn has(&self, host: &Host) -> bool {
        match host {
            Host::Address(address) => self.addresses || is_loopback(*address),
            Host::Name(name) => name == "localhost" || self.names.contains(name),
        }
    }
}

impl Authority {
    /// Parses a host and a port. Returns `None` if there is anything else, such as user info, or if the text is not in
    /// URL syntax.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(literal) => {
                let (address, port) = literal.split_once(']')?;
                (
                    Host::Address(IpAddr::V6(address.parse().ok()?)),
                    port.strip_prefix(':').or(port.is_empty().then_some("")),
                )
            }
            None => {
                let (host, port) = text.split_once(':').unwrap_or((text, ""));
                (Host::named(host)?, Some(port))
            }
        };
        let port = match port? {
            "" => None,
            port if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
            _ => return None,
        };
        Some(Self { host, port })
    }
}

impl Host {
    fn named(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !text.is_empty() && text.bytes().all(in_name);
        is_name.then(|| Self::Name(text.to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(hosts: &AllowedHosts, host: &str) -> bool {
        Authority::parse(host).is_some_and(|authority| hosts.has(&authority.host))
    }

    #[test]
    fn only_loopback_and_allowed_hosts_match() {
        let hosts = AllowedHosts::new(&["Proxy.internal".to_owned()]);
        for host in [
            "localhost",
            "localhost:8001",
            "LocalHost:8001",
            "127.0.0.1:8001",
            "127.8.9.1",
            "[::1]:8001",
            "[::1]",
            "[0:0:0:0:0:0:0:1]:80",
            "[::ffff:127.0.0.1]:80",
            "proxy.internal:443",
        ] {
            assert!(has(&hosts, host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8001",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.nip.io:80",
            "127.1",
            "0.0.0.0:8001",
            "10.0.0.1:8001",
            "[::]:8001",
            "",
            ":8001",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "localhost:80:80",
            "user@localhost",
            "localhost/evil.example",
            "[::1",
            "[::1]x",
            "[localhost]",
            "::1",
        ] {
            // An empty port is the default one.
            assert_eq!(has(&hosts, host), host == "localhost:", "{host}");
        }
        let relayed = hosts.or_any_address();
        for (host, expected) in [("10.0.0.1:9090", true), ("[fd00::1]:9090", true), ("evil.example", false)] {
            assert_eq!(has(&relayed, host), expected, "{host}");
        }
    }
}
