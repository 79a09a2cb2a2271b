use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::CheckFinding;
use crate::net::ListenerTls;

/// A file with certificates to check.
#[derive(Debug, Clone)]
pub struct CertificateFile {
    /// The configuration key that names the file.
    pub key: &'static str,
    pub path: PathBuf,
    /// Whether the file is a server certificate followed by its chain; otherwise it is a CA bundle.
    pub is_chain: bool,
}

const AREA: &str = "certificates";
/// The remaining validity below which a certificate gets a note.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Reads each file and reports how long its certificates are valid.
pub fn certificates(files: &[CertificateFile], now: SystemTime) -> Vec<CheckFinding> {
    let of_file = |file: &CertificateFile| {
        let named = format!("{}: {}", file.key, file.path.display());
        check(file, &named, now).unwrap_or_else(|why| vec![CheckFinding::failed(AREA, format!("{named}: {why}"))])
    };
    files.iter().flat_map(of_file).collect()
}

fn check(file: &CertificateFile, named: &str, now: SystemTime) -> Result<Vec<CheckFinding>, String> {
    let pem = std::fs::read(&file.path).map_err(|error| error.to_string())?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("no certificate found (expected a PEM block \"CERTIFICATE\")".to_owned());
    }
    let parsed: Result<Vec<_>, _> = chain.iter().map(|der| X509Certificate::from_der(der).map(|(_, it)| it)).collect();
    let parsed = parsed.map_err(|_| "cannot parse the certificate")?;
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(seconds).unwrap_or(i64::MAX);
    let soon = i64::try_from(SOON.as_secs()).unwrap_or(i64::MAX);
    let mut findings = Vec::new();
    for certificate in &parsed {
        let (subject, validity) = (certificate.subject(), certificate.validity());
        let (from, to) = (validity.not_before, validity.not_after);
        let text = format!("{named}: {subject}");
        if to.timestamp() <= now {
            findings.push(CheckFinding::failed(AREA, format!("{text} expired on {to}")));
        } else if from.timestamp() > now {
            findings.push(CheckFinding::failed(AREA, format!("{text} is not valid before {from}")));
        } else if to.timestamp() - now < soon {
            findings.push(CheckFinding::warning(AREA, format!("{text} expires soon, on {to}")));
        } else {
            findings.push(CheckFinding::ok(AREA, format!("{text} is valid until {to}")));
        }
    }
    if file.is_chain {
        let broken = parsed.windows(2).position(|pair| pair[0].issuer() != pair[1].subject());
        if let Some(at) = broken {
            let message = format!("{named}: certificate {} is not issued by the certificate that follows it", at + 1);
            findings.push(
                CheckFinding::failed(AREA, message)
                    .with_remedy("write the chain in order, the server certificate first"),
            );
        }
        findings.extend(parsed.first().map(|first| names(named, first)));
    }
    Ok(findings)
}

/// Reports the names in the server certificate.
fn names(named: &str, certificate: &X509Certificate<'_>) -> CheckFinding {
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress([a, b, c, d]) => Some(format!("{a}.{b}.{c}.{d}")),
        GeneralName::IPAddress(bytes) => {
            let bytes: [u8; 16] = (*bytes).try_into().ok()?;
            Some(std::net::Ipv6Addr::from(bytes).to_string())
        }
        _ => None,
    };
    let names: Vec<_> = alternative.iter().flat_map(|of| of.value.general_names.iter().filter_map(name)).collect();
    if names.is_empty() {
        let message = format!("{named}: no subject alternative name, which clients require");
        return CheckFinding::failed(AREA, message);
    }
    CheckFinding::ok(AREA, format!("{named}: valid for {}", names.join(", ")))
}

/// Reports whether clients with upstream's CA, as pods have it, accept the listener's certificate, which is in this
/// file, and whether it is valid for these hosts.
pub async fn trust(
    listener: &ListenerTls,
    certificate: &Path,
    client: &rustls::ClientConfig,
    hosts: &[String],
) -> Vec<CheckFinding> {
    // A verifier reports a wrong name only for a certificate that it trusts.
    let no_host = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
    let issuer = match listener.shake(client, no_host).await {
        Err(error) if !is_wrong_name(&error) => CheckFinding::warning(
            AREA,
            format!("clients with upstream's CA, as pods have it, do not trust tls.certificate: {error}"),
        )
        .with_remedy(
            "have the cluster's authority sign it (deploy/certificate.sh), or give clients its CA \
                     (docs/GUIDES.md, \"Pods\")",
        ),
        _ => CheckFinding::ok(AREA, "clients with upstream's CA, as pods have it, trust tls.certificate"),
    };
    let valid_for = |host: &String| -> Result<(), String> {
        let leaf = CertificateDer::from_pem_file(certificate).map_err(|error| error.to_string())?;
        let leaf = webpki::EndEntityCert::try_from(&leaf).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(host.as_str()).map_err(|error| error.to_string())?;
        leaf.verify_is_valid_for_subject_name(&name).map_err(|_| "not a subject alternative name".to_owned())
    };
    let of_host = |host| match valid_for(host) {
        Ok(()) => CheckFinding::ok(AREA, format!("tls.certificate is valid for {host}")),
        Err(why) => CheckFinding::failed(AREA, format!("tls.certificate is not valid for {host}: {why}"))
            .with_remedy("issue a certificate for the hosts that clients connect to"),
    };
    std::iter::once(issuer).chain(hosts.iter().map(of_host)).collect()
}

fn is_wrong_name(error: &std::io::Error) -> bool {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(error, Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::CheckOutcome;

    #[tokio::test]
    async fn trust_depends_on_issuer_and_host() {
        let authority = |name: &str| {
            let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            (rcgen::Issuer::new(params, key), certificate)
        };
        let folder = std::env::temp_dir().join(format!("kube-fanout-trust-{}", fastrand::u64(..)));
        std::fs::create_dir_all(&folder).expect("a folder");
        let ((issuer, own), (_, other)) = (authority("own"), authority("other"));
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["fanout.example".to_owned(), "10.0.0.7".to_owned()];
        let leaf =
            rcgen::CertificateParams::new(names).expect("names").signed_by(&key, &issuer).expect("a certificate");
        // One file with both, as the kubelet writes it.
        let file = folder.join("current.pem");
        std::fs::write(&file, format!("{}{}", leaf.pem(), key.serialize_pem())).expect("a file");
        let listener = ListenerTls::from_files("certificate", &file, &file, crate::net::ClientCertificates::Ignored);
        let listener = listener.expect("a pair");
        let hosts = ["10.0.0.7", "fanout.example", "10.0.0.8", "other.example", "not a host"].map(str::to_owned);
        for (authority, issued) in [(&own, CheckOutcome::Ok), (&other, CheckOutcome::Warning)] {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(authority.der().clone()).expect("an authority");
            let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            let found = trust(&listener, &file, &client, &hosts).await;
            let found: Vec<_> = found.into_iter().map(|finding| finding.outcome).collect();
            let (ok, failed) = (CheckOutcome::Ok, CheckOutcome::Failed);
            assert_eq!(found, [issued, ok, ok, failed, failed, failed]);
        }
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn invalid_certificate_is_reported_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("kube-fanout-preflight-{}", fastrand::u64(..)));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("tls.crt");
        let made = rcgen::generate_simple_self_signed(vec!["fanout.example".to_owned()]).expect("a certificate");
        std::fs::write(&path, made.cert.pem()).expect("a file");
        let file = CertificateFile { key: "tls.certificate", path: path.clone(), is_chain: true };
        let outcomes = |now: SystemTime| -> Vec<_> {
            certificates(std::slice::from_ref(&file), now)
                .into_iter()
                .map(|finding| (finding.outcome, finding.message))
                .collect()
        };
        let year_2030 = UNIX_EPOCH + Duration::from_secs(60 * 365 * 24 * 3600);
        let good = outcomes(year_2030);
        assert!(good.iter().all(|(outcome, _)| *outcome == CheckOutcome::Ok), "{good:?}");
        assert!(good[1].1.ends_with("valid for fanout.example"), "{good:?}");
        // rcgen's own ends in the year 4096.
        let late = UNIX_EPOCH + Duration::from_secs(2_200 * 365 * 24 * 3600);
        assert_eq!(outcomes(late)[0].0, CheckOutcome::Failed);
        assert_eq!(outcomes(UNIX_EPOCH)[0].0, CheckOutcome::Failed);
        std::fs::write(&path, "half of").expect("a file");
        assert_eq!(outcomes(year_2030)[0].0, CheckOutcome::Failed);
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(outcomes(year_2030)[0].0, CheckOutcome::Failed);
    }
}
