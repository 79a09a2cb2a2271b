use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// A listen address: `ADDR:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address (expected IP:PORT (127.0.0.1:8001, [::1]:8001), localhost:PORT or unix:PATH)")]
pub struct ListenAddressError(String);

impl ListenAddress {
    /// Whether only this machine can reach the listening address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix(_) => true,
        }
    }
}

/// Whether an IP address is a loopback address, which only this machine can reach.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let wrong = || ListenAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        numeric.parse().map(Self::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_ip_and_port_or_unix_socket_path() {
        for (text, local) in [
            ("127.0.0.1:0", true),
            ("127.8.9.1:80", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("localhost:8001", true),
            ("unix:/run/x.sock", true),
            ("0.0.0.0:80", false),
            ("10.0.0.1:80", false),
            ("[::]:80", false),
        ] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.is_local(), local, "{text}");
        }
        for text in ["", "8001", "unix:", "example.com:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
