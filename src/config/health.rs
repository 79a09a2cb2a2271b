use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

use super::Problems;
use super::configuration::Configuration;
use crate::net::{Address, PagePlace};

/// What `health` is asked with.
#[derive(Debug, clap::Args)]
pub struct HealthArguments {
    /// What to ask, http://HOST:PORT or unix:PATH, with a path if it is not /livez [default: where the configuration
    /// has probes answered, or else the admin pages]
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// The configuration file that `serve` has
    #[arg(long, value_name = "FILE", env = "KUBE_FANOUT_CONFIG")]
    config: Option<PathBuf>,
    /// The same flag that `serve` has
    #[arg(long, value_name = "ADDR")]
    healthz_bind_address: Option<String>,
    /// How long an answer may take
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// A question to a running proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthQuestion {
    pub place: PagePlace,
    pub path: String,
    pub timeout: Duration,
}

const DEFAULT_PATH: &str = "/livez";
const HTTP_PORT: u16 = 80;

impl HealthArguments {
    /// Finds out whom to ask.
    ///
    /// # Errors
    /// Everything that is wrong with the URL, or with the configuration if there is none.
    pub fn resolve(self) -> Result<HealthQuestion, Problems> {
        let mut problems = Problems::default();
        let Self { url, config, healthz_bind_address, timeout } = self;
        let named = match url {
            Some(url) => problems.check("URL", named(&url)),
            None => {
                let file = config.as_deref().map(|path| Configuration::read(path, &mut problems)).unwrap_or_default();
                configured(file, healthz_bind_address, &mut problems)
            }
        };
        match named {
            Some((place, path)) if problems.is_empty() => Ok(HealthQuestion { place, path, timeout }),
            _ => Err(problems),
        }
    }
}

pub(super) fn named(url: &str) -> Result<(PagePlace, String), String> {
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok((PagePlace::Unix(path.into()), DEFAULT_PATH.to_owned()));
    }
    let wrong = || format!("{url:?} is neither http://HOST:PORT, with a path or without, nor unix:PATH");
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
    let place = PagePlace::Tcp(format!("{host}:{}", uri.port_u16().unwrap_or(HTTP_PORT)));
    let path = uri.path_and_query().map(ToString::to_string).filter(|path| path != "/");
    Ok((place, path.unwrap_or_else(|| DEFAULT_PATH.to_owned())))
}

/// Where `serve` with this configuration answers probes.
fn configured(file: Configuration, flag: Option<String>, problems: &mut Problems) -> Option<(PagePlace, String)> {
    let (key, text) = match flag.unwrap_or(file.healthz_bind_address) {
        off if off == "off" => ("admin", file.admin),
        address => ("healthzBindAddress", address),
    };
    if text == "off" {
        problems.add("healthzBindAddress and admin are off: name a URL");
        return None;
    }
    let place = match problems.check(key, text.parse())? {
        Address::Tcp(address) => PagePlace::Tcp(reachable(address).to_string()),
        Address::Unix(path) => PagePlace::Unix(path),
    };
    Some((place, DEFAULT_PATH.to_owned()))
}

/// What listens on all interfaces is found on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_with_its_path_and_without() {
        let tcp = |place: &str, path: &str| Ok((PagePlace::Tcp(place.to_owned()), path.to_owned()));
        for (url, expected) in [
            ("http://127.0.0.1:10256", tcp("127.0.0.1:10256", "/livez")),
            ("http://127.0.0.1:10256/", tcp("127.0.0.1:10256", "/livez")),
            ("http://fanout.internal/readyz?verbose", tcp("fanout.internal:80", "/readyz?verbose")),
            ("http://[::1]:7/healthz", tcp("[::1]:7", "/healthz")),
            ("unix:/run/admin.sock", Ok((PagePlace::Unix("/run/admin.sock".into()), "/livez".to_owned()))),
        ] {
            assert_eq!(named(url), expected, "{url}");
        }
        for url in ["https://127.0.0.1:10256", "127.0.0.1:10256", "/livez", "", "http://"] {
            assert!(named(url).is_err(), "{url}");
        }
    }

    #[test]
    fn by_default_it_asks_where_serve_answers() {
        let at = |file: &str, flag: Option<&str>| {
            let mut problems = Problems::default();
            let file = Configuration::parse(file, &mut problems);
            configured(file, flag.map(str::to_owned), &mut problems).map(|(place, _)| place)
        };
        let tcp = |place: &str| Some(PagePlace::Tcp(place.to_owned()));
        assert_eq!(at("", None), tcp("127.0.0.1:9090"));
        assert_eq!(at("healthzBindAddress: 0.0.0.0:10256", None), tcp("127.0.0.1:10256"));
        assert_eq!(at("healthzBindAddress: '[::]:10256'", None), tcp("[::1]:10256"));
        assert_eq!(at("healthzBindAddress: 0.0.0.0:10256", Some("10.0.0.7:1")), tcp("10.0.0.7:1"));
        assert_eq!(at("admin: unix:/run/a.sock", None), Some(PagePlace::Unix("/run/a.sock".into())));
        assert_eq!(at("admin: off", None), None);
    }
}
