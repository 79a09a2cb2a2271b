use std::path::PathBuf;
use std::time::Duration;

use super::object_set::ObjectSet;
use super::record::{ClientTransport, RecordedEncoding};
use probe::TargetCredentials;

/// The options of a verification: its target, duration and load.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The URL of the judged server.
    pub url: String,
    /// Additional servers of the same cluster, which clients also use. They are judged in the same way.
    pub also: Vec<AdditionalServer>,
    /// Whether all clients are informers that resume for as long as any server permits it, and never relist on their
    /// own.
    pub informers: bool,
    /// How many clients share an HTTP/2 connection.
    pub share: u32,
    pub credentials: TargetCredentials,
    /// The address of the apiserver's etcd; `None` without one.
    pub etcd: Option<EtcdOptions>,
    /// The apiserver itself. It is the source of truth without etcd, and bytes are compared with it.
    pub direct: Option<String>,
    /// The resource to verify: `configmaps`, or `PLURAL.GROUP`.
    pub resource: String,
    pub clients: u32,
    pub writers: u32,
    /// Writes per second, of all writers together.
    pub rate: f64,
    pub objects: usize,
    pub namespaces: usize,
    pub duration: Duration,
    pub seed: u64,
    /// The shell commands that cause faults.
    pub faults: Vec<String>,
    /// The shortest and longest interval between two fault commands.
    pub fault_every: (Duration, Duration),
    /// The time for which a server keeps its history.
    pub window: Duration,
    /// The maximum time that the delivery of a change may take.
    pub patience: Duration,
    /// The minimum number of events delivered to clients. With fewer, the run is inconclusive.
    pub events_min: u64,
    pub transports: Vec<ClientTransport>,
    pub encodings: Vec<RecordedEncoding>,
    /// The maximum size of the record in bytes.
    pub record_bytes_max: u64,
    /// The directory for the record and the report.
    pub out: PathBuf,
    /// Whether the created objects are kept after the run.
    pub keep: bool,
    /// The command line that repeats the run.
    pub command: String,
}

/// An additional server, with its CA if it differs from the first server's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdditionalServer {
    pub url: String,
    pub ca: Option<PathBuf>,
}

impl AdditionalServer {
    /// Parses `URL[,CA]`.
    ///
    /// # Errors
    /// If the text does not have this form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (url, ca) = match text.split_once(',') {
            Some((url, ca)) => (url, Some(ca)),
            None => (text, None),
        };
        if url.is_empty() || ca.is_some_and(|ca| ca.is_empty() || ca.contains(',')) {
            return Err(format!("expected URL[,CA], not {text}"));
        }
        Ok(Self { url: url.to_owned(), ca: ca.map(PathBuf::from) })
    }
}

/// The address of etcd, with the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdOptions {
    pub url: String,
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The prefix of the resource's keys, if it differs from the apiserver's layout.
    pub prefix: Option<String>,
}

impl EtcdOptions {
    /// Parses `URL[,CA[,CERTIFICATE,KEY]]`.
    ///
    /// # Errors
    /// If the text does not have this form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::to_owned);
        let url = parts.next().filter(|url| !url.is_empty()).ok_or("etcd= needs a URL")?;
        let [ca, certificate, key] = [parts.next(), parts.next(), parts.next()].map(|part| part.map(PathBuf::from));
        if parts.next().is_some() || certificate.is_some() != key.is_some() {
            return Err(format!("expected etcd=URL[,CA[,CERTIFICATE,KEY]], not etcd={text}"));
        }
        let ca = ca.filter(|ca| !ca.as_os_str().is_empty());
        Ok(Self { url, ca, certificate, key, prefix: None })
    }
}

const CLIENTS_MAX: u32 = 2_000;
/// The maximum number of additional servers.
const ALSO_MAX: usize = 16;
const SHARE_MAX: u32 = 100;
const WRITERS_MAX: u32 = 100;
const OBJECTS_MAX: usize = 10_000;
const RATE_MAX: f64 = 10_000.0;
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const RECORD_BYTES_MAX: u64 = 8 << 30;

impl VerifyOptions {
    /// Checks that the options can be carried out.
    ///
    /// # Errors
    /// One sentence for each problem.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        let mut within = |name: &str, value: f64, least: f64, most: f64| {
            if !(least..=most).contains(&value) {
                problems.push(format!("{name} {value} is out of range: expected {least} to {most}"));
            }
        };
        within("clients", f64::from(self.clients), 1.0, f64::from(CLIENTS_MAX));
        within("share", f64::from(self.share), 1.0, f64::from(SHARE_MAX));
        within("servers in also", self.also.len() as f64, 0.0, ALSO_MAX as f64);
        within("writers", f64::from(self.writers), 1.0, f64::from(WRITERS_MAX));
        within("objects", self.objects as f64, 1.0, OBJECTS_MAX as f64);
        within("namespaces", self.namespaces as f64, 1.0, ObjectSet::NAMESPACES_MAX as f64);
        within("rate", self.rate, 0.1, RATE_MAX);
        within("duration, in seconds,", self.duration.as_secs_f64(), 1.0, DURATION_MAX.as_secs_f64());
        within("record-mebibytes", (self.record_bytes_max >> 20) as f64, 1.0, (RECORD_BYTES_MAX >> 20) as f64);
        if self.fault_every.0 > self.fault_every.1 {
            problems.push("fault-every: the minimum exceeds the maximum".to_owned());
        }
        if self.transports.iter().all(|transport| *transport == ClientTransport::Ws) {
            problems.push("transports: ws carries only watches; add h1 or h2".to_owned());
        }
        if self.encodings.first() != Some(&RecordedEncoding::Json) {
            problems.push("encodings: json must be the first, because its content is compared".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_server_argument_accepts_its_own_ca() {
        let of = |url: &str, ca: Option<&str>| AdditionalServer { url: url.to_owned(), ca: ca.map(PathBuf::from) };
        assert_eq!(AdditionalServer::parse("https://zone:1"), Ok(of("https://zone:1", None)));
        assert_eq!(AdditionalServer::parse("https://zone:1,zone.crt"), Ok(of("https://zone:1", Some("zone.crt"))));
        for wrong in ["", ",zone.crt", "https://zone,", "https://zone,a,b"] {
            assert!(AdditionalServer::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn etcd_argument_parses_with_or_without_tls_files() {
        let bare = EtcdOptions::parse("http://127.0.0.1:2379").expect("a URL");
        assert_eq!(bare, EtcdOptions { url: "http://127.0.0.1:2379".to_owned(), ..EtcdOptions::default() });
        let full = EtcdOptions::parse("https://e:2379,ca.crt,c.crt,c.key").expect("all of it");
        assert_eq!(full.key, Some(PathBuf::from("c.key")));
        assert_eq!(EtcdOptions::parse("https://e,ca.crt").expect("a CA").ca, Some(PathBuf::from("ca.crt")));
        for wrong in ["", "https://e,ca,cert", "https://e,a,b,c,d"] {
            assert!(EtcdOptions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
