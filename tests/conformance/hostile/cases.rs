use fastrand::Rng;

use super::{framing, heads, streams, targets};
use crate::bed::{Account, Authority, Identity, Plane};

/// The senders of hostile requests. None of them has any relevant permission.
pub struct Cast {
    pub callers: Vec<Identity>,
    /// Tokens of other users, which a caller has obtained in some way.
    pub others: Vec<String>,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Plain TCP without TLS.
    Tcp,
    Http1,
    Http2,
}

/// Bytes for one connection, and the permitted outcomes.
#[derive(Debug)]
pub struct Case {
    pub family: &'static str,
    pub wire: Wire,
    /// The index of the caller whose connection and credential are used.
    pub caller: usize,
    pub bytes: Vec<u8>,
    /// The marker of the case, which is a prefix of all markers in it.
    pub mark: String,
    /// Markers of requests that may arrive upstream, each once. No other may.
    pub sound: Vec<String>,
    /// Whether the credential is ambiguous. If so, upstream may see the requests as no user only; otherwise also as the
    /// caller.
    pub ambiguous: bool,
    /// The expected upstream request target, if it must arrive unchanged.
    pub target: Option<String>,
}

/// An HTTP/1 head before serialization.
#[derive(Debug, Clone)]
pub struct Head {
    pub method: String,
    pub target: String,
    pub version: String,
    /// Header lines without line ends.
    pub lines: Vec<Vec<u8>>,
}

pub const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
pub const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

impl Cast {
    pub async fn assemble(plane: &Plane, authority: &Authority) -> Self {
        let direct = plane.direct();
        let account = Account::create(&direct, "t1", "hostile").await.token(&direct).await;
        let people = [
            authority.issue("mallory", &["dev", "ops"]),
            authority.issue("system:serviceaccount:t1:impostor", &[]),
            authority.issue("system:anonymous", &["dev"]),
            Authority::foreign(plane).issue("admin", &["system:masters"]),
            authority.issue("mallory", &["dev"]).and_token(&plane.user("admin").token),
        ];
        let mut callers = vec![plane.user("bob"), plane.user("bob"), account, Identity::anonymous()];
        callers.push(Identity::token("a guess", "not-a-token"));
        callers.extend(people);
        let others = ["alice", "admin"].map(|name| plane.user(name).token).to_vec();
        Self { callers, others }
    }
}

impl Case {
    pub fn draw(cast: &Cast, random: &mut Rng, at: u64) -> Self {
        let caller = random.usize(..cast.callers.len());
        let identity = &cast.callers[caller];
        let mark = format!("h{at}-");
        let mut case = Self {
            family: "",
            wire: Wire::Http1,
            caller,
            bytes: Vec::new(),
            sound: vec![format!("{mark}a")],
            ambiguous: false,
            target: None,
            mark,
        };
        match random.u32(..20) {
            0..=4 => heads::identity(&mut case, identity, random),
            5 => heads::hop_by_hop(&mut case, identity, random),
            6 => heads::authorization(&mut case, cast, random),
            7 => heads::spelling(&mut case, identity, random),
            8 => heads::bulk(&mut case, identity, random),
            9 | 10 => framing::length(&mut case, identity, random),
            11 | 12 => framing::coding(&mut case, identity, random),
            13 => framing::chunks(&mut case, identity, random),
            14 => framing::upgrade(&mut case, identity, random),
            15 => targets::path(&mut case, identity, random),
            16 => targets::form(&mut case, identity, random),
            17 => targets::noise(&mut case, random),
            _ => streams::draw(&mut case, identity, random),
        }
        case
    }

    /// A `SelfSubjectReview` request to be manipulated.
    pub fn question(&self, identity: &Identity) -> Head {
        let mut head = Head::new("POST", &format!("{REVIEWS}?mark={}a", self.mark), identity);
        head.add("Content-Type: application/json");
        head
    }

    /// A request to be hidden inside another one. Its target is forbidden for its sender.
    pub fn hidden(&self, identity: &Identity) -> String {
        let mut head =
            Head::new("GET", &format!("/api/v1/namespaces/kube-system/secrets?mark={}s", self.mark), identity);
        head.add("X-Remote-User: admin");
        head.add("X-Remote-Group: system:masters");
        String::from_utf8(head.spell("\r\n")).expect("text")
    }
}

impl Head {
    pub fn new(method: &str, target: &str, identity: &Identity) -> Self {
        let mut head = Self {
            method: method.to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1".to_owned(),
            lines: Vec::new(),
        };
        head.add("Host: 127.0.0.1");
        head.add("Accept: application/json");
        if !identity.token.is_empty() {
            head.add(&format!("Authorization: Bearer {}", identity.token));
        }
        head
    }

    pub fn method(self, method: &str) -> Self {
        Self { method: method.to_owned(), ..self }
    }

    pub fn target(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }

    pub fn version(self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self }
    }

    pub fn add(&mut self, line: &str) {
        self.lines.push(line.as_bytes().to_vec());
    }

    /// Inserts at a random position, because the first of several lines may win.
    pub fn insert(&mut self, line: Vec<u8>, random: &mut Rng) {
        let at = random.usize(..=self.lines.len());
        self.lines.insert(at, line);
    }

    /// Serializes the head, including its end.
    pub fn spell(&self, end: &str) -> Vec<u8> {
        let first = format!("{} {} {}", self.method, self.target, self.version).into_bytes();
        let lines = [&first].into_iter().chain(&self.lines);
        let mut bytes: Vec<u8> = lines.flat_map(|line| [line.as_slice(), end.as_bytes()].concat()).collect();
        bytes.extend_from_slice(end.as_bytes());
        bytes
    }

    /// Serializes the head with a body of the declared length.
    pub fn with_body(mut self, body: &str) -> Vec<u8> {
        self.add(&format!("Content-Length: {}", body.len()));
        [&self.spell("\r\n"), body.as_bytes()].concat()
    }
}

/// Draws one of the strings.
pub fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(..from.len())]
}
