use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::ConfigProblems;
use super::configuration::Configuration;
use crate::net::ListenAddress;
use base::AdminPageAddress;

/// The arguments of `health`.
#[derive(Debug, clap::Args)]
pub struct HealthArguments {
    /// URL to probe: http://HOST:PORT or unix:PATH, with a path if it is not /livez [default: healthzBindAddress of the
    /// configuration, or else its admin address]
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Configuration file of the proxy
    #[arg(long, value_name = "FILE", env = "KUBE_FANOUT_CONFIG")]
    config: Option<PathBuf>,
    /// Value of the same flag of `serve`
    #[arg(long, value_name = "ADDR")]
    healthz_bind_address: Option<String>,
    /// Timeout of the probe
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// A probe of a running proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthProbe {
    pub address: AdminPageAddress,
    pub path: String,
    pub timeout: Duration,
}

impl HealthArguments {
    /// Finds the address to probe.
    ///
    /// # Errors
    /// All problems of the URL, or of the configuration if no URL is given.
    pub fn resolve(self) -> Result<HealthProbe, ConfigProblems> {
        let mut problems = ConfigProblems::default();
        let Self { url, config, healthz_bind_address, timeout } = self;
        let named = match url {
            Some(url) => problems.check("URL", AdminPageAddress::parse(&url)),
            None => {
                let file = config.as_deref().map(|path| Configuration::read(path, &mut problems)).unwrap_or_default();
                configured(file, healthz_bind_address, &mut problems).map(|address| (address, None))
            }
        };
        match named {
            Some((address, path)) if problems.is_empty() => {
                Ok(HealthProbe { address, path: path.unwrap_or_else(|| "/livez".to_owned()), timeout })
            }
            _ => Err(problems),
        }
    }
}

/// The address where `serve` with this configuration answers probes.
fn configured(file: Configuration, flag: Option<String>, problems: &mut ConfigProblems) -> Option<AdminPageAddress> {
    let (key, text) = match flag.unwrap_or(file.healthz_bind_address) {
        off if off == "off" => ("admin", file.admin),
        address => ("healthzBindAddress", address),
    };
    if text == "off" {
        problems.add("healthzBindAddress and admin are off: pass a URL");
        return None;
    }
    Some(match problems.check(key, text.parse())? {
        ListenAddress::Tcp(address) => AdminPageAddress::Tcp(reachable(address).to_string()),
        ListenAddress::Unix(path) => AdminPageAddress::Unix(path),
    })
}

/// A listener on all interfaces is reachable on loopback.
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
    fn probe_address_defaults_to_healthz_or_admin_address() {
        let at = |file: &str, flag: Option<&str>| {
            let mut problems = ConfigProblems::default();
            let file = Configuration::parse(file, &mut problems);
            configured(file, flag.map(str::to_owned), &mut problems)
        };
        let tcp = |address: &str| Some(AdminPageAddress::Tcp(address.to_owned()));
        assert_eq!(at("", None), tcp("127.0.0.1:9090"));
        assert_eq!(at("healthzBindAddress: 0.0.0.0:10256", None), tcp("127.0.0.1:10256"));
        assert_eq!(at("healthzBindAddress: '[::]:10256'", None), tcp("[::1]:10256"));
        assert_eq!(at("healthzBindAddress: 0.0.0.0:10256", Some("10.0.0.7:1")), tcp("10.0.0.7:1"));
        assert_eq!(at("admin: unix:/run/a.sock", None), Some(AdminPageAddress::Unix("/run/a.sock".into())));
        assert_eq!(at("admin: off", None), None);
    }
}
