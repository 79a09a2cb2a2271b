use serde::Deserialize;

use super::{Client, Error};

/// A release of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
}

const VERSION: &str = "/version";

impl Client {
    /// The release that upstream behaves as, which may be an older one than it is (`--emulated-version`).
    pub async fn release(&self) -> Result<Release, Error> {
        let (_, body) = self.fetch(VERSION, "application/json").await?;
        Release::parse(&body).ok_or_else(|| Error::Form(format!("{VERSION} names no release")))
    }
}

impl Release {
    /// Out of a `/version` document. Some distributions write `31+`.
    fn parse(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            major: String,
            minor: String,
            #[serde(default)]
            emulation_major: String,
            #[serde(default)]
            emulation_minor: String,
        }
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let version: Version = serde_json::from_slice(body).ok()?;
        let emulated = number(&version.emulation_major).zip(number(&version.emulation_minor));
        let (major, minor) = emulated.or_else(|| number(&version.major).zip(number(&version.minor)))?;
        Some(Self { major, minor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_one_that_upstream_behaves_as() {
        for (body, expected) in [
            (r#"{"major": "1", "minor": "36"}"#, Some((1, 36))),
            (r#"{"major": "1", "minor": "31+", "gitVersion": "v1.31.0-eks"}"#, Some((1, 31))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "35"}"#, Some((1, 35))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "", "emulationMinor": ""}"#, Some((1, 36))),
            (r#"{"major": "", "minor": ""}"#, None),
            ("{}", None),
        ] {
            let expected = expected.map(|(major, minor)| Release { major, minor });
            assert_eq!(Release::parse(body.as_bytes()), expected, "{body}");
        }
        assert!(Release { major: 1, minor: 36 } > Release { major: 1, minor: 9 });
        assert!(Release { major: 2, minor: 0 } > Release { major: 1, minor: 36 });
    }
}
