use std::fmt;

use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use super::BUILD;

/// A Kubernetes release: its major and minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesRelease {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for KubernetesRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The build that a server reports in `/version`. Servers that report the same build produce the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerBuild {
    /// The release that the server emulates. It may be older than the server itself (`--emulated-version`).
    pub release: KubernetesRelease,
    /// The minor version of the server's own release. It determines the layout of objects in JSON, which depends on the
    /// Go types compiled into the server, not on the emulated release.
    pub minor: u32,
    /// All fields that may change encoded bytes: patches and distributions add fields, emulation and compatibility
    /// change defaults. The text is a `/version` document reduced to these fields.
    document: Box<str>,
}

/// The fields that are read from a `/version` document.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionDocument {
    major: String,
    minor: String,
    emulation_major: String,
    emulation_minor: String,
    min_compatibility_major: String,
    min_compatibility_minor: String,
    git_version: String,
    git_commit: String,
}

impl ServerBuild {
    /// Returns the build of a server with the given `/version` document.
    #[cfg(test)]
    pub(crate) fn of(version: &str) -> Option<Self> {
        Self::parse(version.as_bytes())
    }

    /// Parses a `/version` document; returns `None` if it is invalid. Some distributions write a minor version as
    /// `31+`.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let document: VersionDocument = serde_json::from_slice(body).ok()?;
        let (major, minor) = number(&document.major).zip(number(&document.minor))?;
        let emulated = number(&document.emulation_major).zip(number(&document.emulation_minor));
        let behaves_as = emulated.unwrap_or((major, minor));
        let release = KubernetesRelease { major: behaves_as.0, minor: behaves_as.1 };
        Some(Self { release, minor, document: serde_json::to_string(&document).ok()?.into() })
    }

    /// Returns the build that encoded the bodies of a proxy's response, from its `Kube-Fanout-Build` header.
    pub(super) fn named_in(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(BUILD)?.as_bytes())
    }

    /// Returns the value of the `Kube-Fanout-Build` header, for downstream proxies.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.document).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_release_sets_behavior_and_binary_minor_sets_json() {
        for (body, expected) in [
            (r#"{"major": "1", "minor": "36"}"#, Some((1, 36, 36))),
            (r#"{"major": "1", "minor": "31+", "gitVersion": "v1.31.0-eks"}"#, Some((1, 31, 31))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "35"}"#, Some((1, 35, 36))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "", "emulationMinor": ""}"#, Some((1, 36, 36))),
            (r#"{"major": "", "minor": ""}"#, None),
            (r#"{"major":"1","minor":""}"#, None),
            ("{}", None),
        ] {
            let build = ServerBuild::parse(body.as_bytes());
            let found = build.map(|build| (build.release.major, build.release.minor, build.minor));
            assert_eq!(found, expected, "{body}");
        }
        assert!(KubernetesRelease { major: 1, minor: 36 } > KubernetesRelease { major: 1, minor: 9 });
        assert!(KubernetesRelease { major: 2, minor: 0 } > KubernetesRelease { major: 1, minor: 36 });
    }

    #[test]
    fn builds_differ_by_every_field_that_affects_encoding() {
        let build = |more: &str| ServerBuild::parse(format!(r#"{{"major":"1","minor":"36"{more}}}"#).as_bytes());
        let all = [
            "",
            r#","gitVersion":"v1.36.1""#,
            r#","gitVersion":"v1.36.2""#,
            r#","gitVersion":"v1.36.1","gitCommit":"a""#,
            r#","gitVersion":"v1.36.1","emulationMajor":"1","emulationMinor":"35""#,
            r#","gitVersion":"v1.36.1","minCompatibilityMajor":"1","minCompatibilityMinor":"35""#,
        ];
        for one in all {
            for other in all {
                assert_eq!(build(one) == build(other), one == other, "{one} {other}");
            }
        }
        assert_eq!(build(r#","goVersion":"go1.26""#), build(r#","platform":"linux/amd64""#), "the same everywhere");
    }

    #[test]
    fn build_header_round_trips() {
        let body = r#"{"major":"1","minor":"31+","gitVersion":"v1.31.0-eks \"é\"","emulationMajor":"1",
                       "emulationMinor":"30","goVersion":"go1.26"}"#;
        let build = ServerBuild::parse(body.as_bytes()).expect("a build");
        let headers = HeaderMap::from_iter([(BUILD, build.header().expect("it is text"))]);
        assert_eq!(ServerBuild::named_in(&headers), Some(build));
        for other in ["", "{}", "v1.36"] {
            let headers = HeaderMap::from_iter([(BUILD, HeaderValue::from_static(other))]);
            assert_eq!(ServerBuild::named_in(&headers), None, "{other}");
        }
    }
}
