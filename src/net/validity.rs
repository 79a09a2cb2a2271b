use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use super::metrics::certificate_expires;
use base::WallClock;

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

/// The reason that a certificate is not valid now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateInvalid {
    #[error("expired on {0}")]
    Expired(UtcTime),
    #[error("not valid before {0}")]
    NotYetValid(UtcTime),
}

/// A time that is formatted in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UtcTime(SystemTime);

impl CertificateValidity {
    /// Reads the first certificate of a PEM file, which is the holder's own; `None` if no certificate can be read.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        Self::of(&CertificateDer::pem_slice_iter(pem).next()?.ok()?)
    }

    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let validity = certificate.validity();
        Some(Self { not_before: time(validity.not_before), not_after: time(validity.not_after) })
    }

    /// Checks that the certificate is valid at a time.
    ///
    /// # Errors
    /// The certificate has expired, or is not valid yet.
    pub fn check(&self, now: SystemTime) -> Result<(), CertificateInvalid> {
        if now >= self.not_after {
            return Err(CertificateInvalid::Expired(UtcTime(self.not_after)));
        }
        if now < self.not_before {
            return Err(CertificateInvalid::NotYetValid(UtcTime(self.not_before)));
        }
        Ok(())
    }

    /// Sets the expiry metric of a loaded certificate, and logs a warning if it is not valid now. `what` names it in
    /// logs and metrics. Without a certificate, the metric is infinite, because a series cannot be removed.
    pub fn report(loaded: Option<Self>, what: &'static str) {
        let Some(validity) = loaded else { return certificate_expires(what, f64::INFINITY) };
        let expiry = validity.not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
        certificate_expires(what, expiry.as_secs_f64());
        match validity.check(WallClock::default().now()) {
            Ok(()) => tracing::debug!(what, expires = %UtcTime(validity.not_after), "certificate loaded"),
            Err(why) => tracing::warn!(what, reason = %why, "certificate is not valid; peers reject it"),
        }
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
        match time {
            Some(time) => write!(f, "{time}"),
            None => write!(f, "{seconds} s after 1970"),
        }
    }
}

fn time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_valid_from_not_before_until_not_after() {
        let made = rcgen::generate_simple_self_signed(vec!["fanout.example".to_owned()]).expect("a certificate");
        let validity = CertificateValidity::of_pem(made.cert.pem().as_bytes()).expect("one certificate");
        let CertificateValidity { not_before, not_after } = validity;
        let second = Duration::from_secs(1);
        assert_eq!(validity.check(not_before), Ok(()));
        assert_eq!(validity.check(not_after - second), Ok(()));
        let expired = validity.check(not_after).expect_err("it has expired").to_string();
        assert!(expired.starts_with("expired on ") && expired.contains("4096"), "{expired}");
        let early = validity.check(not_before - second).expect_err("it is not valid yet").to_string();
        assert!(early.starts_with("not valid before ") && early.contains("1975"), "{early}");
        assert_eq!(CertificateValidity::of_pem(b"half of"), None);
    }
}
