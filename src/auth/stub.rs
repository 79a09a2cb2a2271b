//! Somebody who answers questions about callers as a test orders it, on the test's own clock.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::credential::Token;
use super::review_topic::ReviewTopic;
use super::reviews::{ReviewFuture, Reviews};
use super::{AuthConfig, Authorizer, Caller, Delegation, NotGranted, RequestSender};
use crate::upstream::{AccessVerdict, Cause, Client, CredentialSource, Error, TokenVerdict};
use base::{Tasks, WallClock};
use kubeapi::{Access, AccessTarget, Query, RequestInfo, User};

/// Tokens are their holders' names, of which one may have many: `ada~1`. Everybody may everything, but for what is
/// denied.
#[derive(Default)]
pub(super) struct Stub {
    rules: Mutex<Rules>,
    pub(super) clock: WallClock,
}

/// Makes an error of upstream's.
pub(super) type Refusal = Box<dyn Fn() -> Error + Send>;

#[derive(Default)]
struct Rules {
    unknown: HashSet<String>,
    /// User and namespace, of which `*` is each.
    denied: HashSet<(String, String)>,
    slow: HashMap<String, Duration>,
    silent: bool,
    /// What is asked is decided at once, however long the answer is on its way.
    decides_first: bool,
    /// A namespace about which nobody answers.
    mute: Option<String>,
    /// Why something is allowed.
    reason: &'static str,
    asked: Vec<StubReview>,
    /// The resources of which we may not create reviews.
    lacking: HashSet<&'static str>,
    /// The answer to every question about our own rights.
    own_rights: Option<Refusal>,
    /// How many questions about our own rights were asked.
    own_asked: u32,
}

/// A question that was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StubReview {
    pub(super) at: Instant,
    pub(super) user: String,
    /// `None`: whose the token is.
    pub(super) namespace: Option<String>,
}

impl Stub {
    /// Takes the token away: it is nobody's from now on.
    pub(super) fn take(&self, token: &str) {
        self.rules.lock().unknown.insert(token.to_owned());
    }

    pub(super) fn deny(&self, user: &str, namespace: &str) {
        self.rules.lock().denied.insert((user.to_owned(), namespace.to_owned()));
    }

    pub(super) fn allow(&self, user: &str, namespace: &str) {
        self.rules.lock().denied.remove(&(user.to_owned(), namespace.to_owned()));
    }

    /// Questions about this user take so long, and so do those about tokens that begin like that.
    pub(super) fn slow(&self, user: &str, answer: Duration) {
        self.rules.lock().slow.insert(user.to_owned(), answer);
    }

    /// Nobody answers; or somebody does again.
    pub(super) fn silent(&self, silent: bool) {
        self.rules.lock().silent = silent;
    }

    /// What is asked is decided at once, and not when it is answered.
    pub(super) fn decides_first(&self) {
        self.rules.lock().decides_first = true;
    }

    /// What is allowed is allowed for this reason from now on.
    pub(super) fn because(&self, reason: &'static str) {
        self.rules.lock().reason = reason;
    }

    /// About this namespace nobody answers.
    pub(super) fn mute(&self, namespace: &str) {
        self.rules.lock().mute = Some(namespace.to_owned());
    }

    /// Takes the right to create reviews of the topic from us, or gives it back.
    pub(super) fn lack(&self, topic: ReviewTopic, lacks: bool) {
        let mut rules = self.rules.lock();
        if lacks {
            rules.lacking.insert(topic.resource())
        } else {
            rules.lacking.remove(topic.resource())
        };
    }

    /// Answers questions about our own rights with this; `None` ends that.
    pub(super) fn refuse_own_rights(&self, refusal: Option<Refusal>) {
        self.rules.lock().own_rights = refusal;
    }

    /// How many questions about our own rights were asked.
    pub(super) fn own_asked(&self) -> u32 {
        self.rules.lock().own_asked
    }

    /// What has been asked, and no more so that it is forgotten.
    pub(super) fn asked(&self) -> Vec<StubReview> {
        std::mem::take(&mut self.rules.lock().asked)
    }

    fn ask(&self, user: &str, namespace: Option<&str>) -> (Duration, bool) {
        let mut rules = self.rules.lock();
        let asked = StubReview { at: Instant::now(), user: user.to_owned(), namespace: namespace.map(str::to_owned) };
        rules.asked.push(asked);
        let group = user.split('-').next().unwrap_or_default();
        let mute = namespace.is_some() && rules.mute.as_deref() == namespace;
        (rules.slow.get(group).copied().unwrap_or(Duration::from_millis(2)), rules.silent || mute)
    }
}

impl Reviews for Arc<Stub> {
    fn own_right(&self, topic: ReviewTopic) -> ReviewFuture<bool> {
        let answer = {
            let mut rules = self.rules.lock();
            rules.own_asked += 1;
            match &rules.own_rights {
                Some(refusal) => Err(refusal()),
                None => Ok(!rules.lacking.contains(&topic.resource())),
            }
        };
        Box::pin(async move { answer })
    }

    fn token(&self, token: &Token, _: &Arc<[String]>) -> ReviewFuture<TokenVerdict> {
        let (stub, name) = (self.clone(), token.reveal().to_owned());
        Box::pin(async move {
            let (slow, silent) = stub.ask(&name, None);
            sleep(slow).await;
            if silent {
                return Err(Error::Timeout(slow));
            }
            let is_known = !name.starts_with("guess") && !stub.rules.lock().unknown.contains(&name);
            let holder = name.split('~').next().unwrap_or_default().to_owned();
            let is_node = holder.starts_with("system:node:");
            let groups = if is_node { vec!["system:nodes".to_owned()] } else { Vec::new() };
            let user = is_known.then(|| User { name: holder, groups, ..User::default() });
            Ok(TokenVerdict { user, audiences: Vec::new() })
        })
    }

    fn access(&self, _: Cause, user: &Arc<User>, access: &Arc<Access>) -> ReviewFuture<AccessVerdict> {
        let (stub, user, access) = (self.clone(), user.name.clone(), access.clone());
        Box::pin(async move {
            let AccessTarget::Resource(target) = &access.target else { panic!("{access:?}") };
            let (slow, silent) = stub.ask(&user, Some(&target.namespace));
            let denied = |namespace: &str| stub.rules.lock().denied.contains(&(user.clone(), namespace.to_owned()));
            let is_allowed = || !denied(&target.namespace) && !denied("*");
            let first = is_allowed();
            sleep(slow).await;
            if silent {
                return Err(Error::Timeout(slow));
            }
            let allowed = if stub.rules.lock().decides_first { first } else { is_allowed() };
            Ok(AccessVerdict { allowed, reason: stub.rules.lock().reason.to_owned() })
        })
    }
}

impl AuthConfig {
    /// The defaults, with answers that are remembered for a day. Their age is measured by the machine's clock, which
    /// goes on when a test pauses its own: a process that stands still for seconds would ask again.
    pub(super) fn remembering_for_a_day() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { token_ttl: day, allowed_ttl: day, denied_ttl: day, ..Self::default() }
    }
}

/// A gate whose questions the stub answers.
pub(super) fn gate(config: AuthConfig) -> (Authorizer, Arc<Stub>, Tasks) {
    let (stub, tasks) = (Arc::new(Stub::default()), Tasks::new());
    let nowhere = CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
    let client = Client::connect(&nowhere, crate::upstream::CostLedger::default()).expect("nothing is sent");
    let clock = stub.clock.clone();
    let parts = Delegation { client, client_authorities: None, front_proxy: None, clock, tasks: tasks.clone() };
    (Authorizer::asking(Arc::new(stub.clone()), config, parts), stub, tasks)
}

impl Authorizer {
    /// Who has a token.
    pub(super) async fn known(&self, token: &str, from: [u8; 4]) -> Result<Caller, NotGranted> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a token"));
        self.authenticate(RequestSender { certificates: None, address: Some(IpAddr::from(from)) }, &headers).await
    }
}

/// What a GET of a path and query is.
pub(super) fn info(uri: &str) -> RequestInfo {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse("GET", path, &Query::parse(query)).expect("a path")
}
