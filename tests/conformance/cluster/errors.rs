//! The error lines of Kubernetes' components, classified by their text.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::components::Cluster;

/// Texts of errors that an unavailable server causes.
const AWAY: [&str; 11] = [
    // The proxy's own message when upstream closed the connection.
    "upstream cannot be reached",
    "exceeds retry count",
    "connection refused",
    "connection reset",
    "broken pipe",
    "EOF",
    "http2: ",
    "use of closed",
    "TLS handshake timeout",
    "deadline exceeded",
    "Client.Timeout",
];
/// The text of errors while an apiserver that has just started does not have all RBAC rules yet.
const NOT_YET_ALLOWED: &str = "is forbidden: User ";

/// Lines of an apiserver whose client disconnected before the response.
const AFTER_TIMEOUT: [&str; 4] =
    ["http: Handler timeout", "Post-timeout activity", "post-timeout activity", "client disconnected"];

/// The component name for errors that may occur in any component while a server is killed.
const ANYBODY: &str = "anybody";

/// The state of the components' server when a line was logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Calm,
    Killed,
}

/// Lines with the same meaning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    pub component: &'static str,
    pub phase: Phase,
    pub what: String,
}

pub type Counts = BTreeMap<Class, usize>;

/// The read position of every log, and the findings.
#[derive(Default)]
pub struct Logs {
    read: BTreeMap<PathBuf, usize>,
    pub seen: Counts,
    /// The first line of each class.
    pub examples: BTreeMap<Class, String>,
}

impl Logs {
    /// Starts at the current end of the apiserver's log, the only one that exists before the cluster.
    pub fn of(cluster: &Cluster<'_>) -> Self {
        let (apiserver, mut logs) = (log_of_apiserver(cluster), Self::default());
        let length = fs::read(&apiserver).unwrap_or_default().len();
        logs.read.insert(apiserver, length);
        logs
    }

    /// Adds the findings of another run.
    pub fn add(&mut self, other: Self) {
        for (class, times) in other.seen {
            *self.seen.entry(class).or_default() += times;
        }
        for (class, example) in other.examples {
            self.examples.entry(class).or_insert(example);
        }
    }

    /// Reads the lines since the last call, and assigns them to this phase.
    pub fn read(&mut self, cluster: &Cluster<'_>, phase: Phase) {
        let apiserver = ("apiserver", log_of_apiserver(cluster));
        let logs = cluster.components.iter().map(|component| (component.kind, component.log.clone()));
        for (component, path) in logs.chain([apiserver]) {
            let bytes = fs::read(&path).unwrap_or_default();
            let from = self.read.entry(path).or_default();
            let until = bytes.iter().rposition(|byte| *byte == b'\n').map_or(*from, |at| at + 1);
            let text = String::from_utf8_lossy(&bytes[*from..until]).into_owned();
            *from = until;
            for line in text.lines() {
                let Some(what) = what_is_wrong(line) else { continue };
                let class = Class::of(component, phase, what);
                *self.seen.entry(class.clone()).or_default() += 1;
                self.examples.entry(class).or_insert_with(|| line.to_owned());
            }
        }
    }
}

fn log_of_apiserver(cluster: &Cluster<'_>) -> PathBuf {
    cluster.plane.dir.join("apiserver.log")
}

impl Class {
    fn of(component: &'static str, phase: Phase, what: Wrong) -> Self {
        match (what, phase) {
            (Wrong::Away(_), Phase::Killed) => Self { component: ANYBODY, phase, what: "no connection".to_owned() },
            (Wrong::NotYetAllowed(_), Phase::Killed) => {
                Self { component: ANYBODY, phase, what: "not allowed yet".to_owned() }
            }
            (Wrong::Away(what) | Wrong::NotYetAllowed(what) | Wrong::Other(what), _) => Self { component, phase, what },
        }
    }
}

/// The text of an error line, without what differs from run to run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wrong {
    Away(String),
    NotYetAllowed(String),
    Other(String),
}

/// The text of an error line of klog; `None` if the line is not an error.
fn what_is_wrong(line: &str) -> Option<Wrong> {
    let digits = line.get(1..5)?.bytes().all(|byte| byte.is_ascii_digit());
    if !(digits && line.starts_with(['E', 'F'])) {
        return None;
    }
    let (head, message) = line.split_once("] ")?;
    let place = head.rsplit(' ').next()?.split(':').next()?;
    let (title, rest) = match message.strip_prefix('"').and_then(|message| message.split_once('"')) {
        Some((title, rest)) => (title, rest),
        None => (message, ""),
    };
    if AFTER_TIMEOUT.iter().any(|part| message.contains(part)) {
        return Some(Wrong::Other("Handler timeout".to_owned()));
    }
    let error = rest.split_once("err=").map_or("", |(_, error)| error.trim_start_matches('"'));
    let what = format!("{place}: {} {}", plain(title), plain(error)).trim_end().to_owned();
    Some(if AWAY.iter().any(|part| message.contains(part)) {
        Wrong::Away(what)
    } else if message.contains(NOT_YET_ALLOWED) {
        Wrong::NotYetAllowed(what)
    } else {
        Wrong::Other(what)
    })
}

/// The maximum number of words in the text of a class.
const WORDS_MAX: usize = 14;

/// Removes names, numbers and addresses from a text: all words with a digit, a slash, a quotation mark or an equals
/// sign.
fn plain(text: &str) -> String {
    let is_plain = |word: &&str| !word.contains(|c: char| c.is_ascii_digit() || "/\\\"=".contains(c));
    text.split_whitespace().filter(is_plain).take(WORDS_MAX).collect::<Vec<_>>().join(" ")
}

#[test]
fn log_errors_are_grouped_ignoring_names_and_numbers() {
    let line = |pod: &str, port: u16| {
        let head = r#"E1125 10:09:27.123456   12345 reflector.go:227] "Failed to watch""#;
        let url = format!(r#"Get \"https://127.0.0.1:{port}/api/v1/pods/{pod}\""#);
        format!(r#"{head} err="failed to list *v1.Pod: {url}: dial tcp: connect: connection refused" logger="x""#)
    };
    let what = "reflector.go: Failed to watch failed to list Get dial tcp: connect: connection".to_owned();
    let wrong = what_is_wrong(&line("a-1", 1)).expect("an error");
    assert_eq!(wrong, Wrong::Away(what.clone()));
    assert_eq!(Some(&wrong), what_is_wrong(&line("b-2", 2)).as_ref());
    assert_eq!(Class::of("kubelet", Phase::Calm, wrong.clone()).what, what);
    let [one, other] = ["kubelet", "proxy"].map(|component| Class::of(component, Phase::Killed, wrong.clone()));
    assert_eq!(one, other);
    assert_eq!(what_is_wrong(&line("a-1", 1).replacen('E', "W", 1)), None);
    let early =
        r#"E1125 10:09:27.123456   12345 a.go:1] "Failed" err="pods \"a\" is forbidden: User \"u\" cannot get""#;
    assert_eq!(
        what_is_wrong(early),
        Some(Wrong::NotYetAllowed("a.go: Failed pods is forbidden: User cannot".to_owned()))
    );
    let unquoted = "E1125 10:09:27.123456   12345 a.go:1] It is 7 too many";
    assert_eq!(what_is_wrong(unquoted), Some(Wrong::Other("a.go: It is too many".to_owned())));
}
