//! The callers of one round. They are new, so that neither server has cached anything about them.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::bed::rbac::subject;
use crate::bed::{Account, Authority, Identity, Plane};
use crate::differential::world::NAMESPACES;

/// A caller.
pub struct Member {
    pub identity: Identity,
    /// The user name in rules; empty if no rule applies to this caller.
    user: String,
    groups: Vec<String>,
    account: Option<Account>,
    /// The node that the caller claims to be.
    pub node: Option<String>,
    /// Whether the apiserver can authenticate the caller. It closes the connections of other callers.
    pub known: bool,
}

pub struct Cast {
    pub members: Vec<Member>,
}

/// The number of callers with certificates.
const PEOPLE: usize = 8;
const GROUPS: usize = 5;
/// Excludes `world`, because a `FlowSchema` of the test objects gives its service accounts no share for listing pods.
const HOMES: [&str; 2] = [NAMESPACES[1], "default"];
const TWO_HOURS: i64 = 7200;

impl Member {
    fn new(identity: Identity) -> Self {
        Self { identity, user: String::new(), groups: Vec::new(), account: None, node: None, known: true }
    }

    fn unknown(identity: Identity) -> Self {
        Self { known: false, ..Self::new(identity) }
    }

    fn person(identity: Identity, user: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { user: user.to_owned(), groups, ..Self::new(identity) }
    }

    /// One of the possible RBAC subjects for this caller.
    pub fn subject(&self, random: &mut Rng) -> Value {
        match &self.account {
            Some(Account { namespace, name, .. }) => match random.u32(..4) {
                0 => subject("Group", &format!("system:serviceaccounts:{namespace}")),
                1 => subject("User", &self.user),
                _ => json!({"kind": "ServiceAccount", "namespace": namespace, "name": name}),
            },
            None if self.groups.is_empty() || random.bool() => subject("User", &self.user),
            None => subject("Group", &self.groups[random.usize(..self.groups.len())]),
        }
    }
}

impl Cast {
    pub async fn assemble(plane: &Plane, random: &mut Rng, round: &str) -> Self {
        let authority = Authority::of(plane);
        let mut members = people(&authority, random, round);
        for at in 0..2 {
            let node = node(round, at);
            let user = format!("system:node:{node}");
            let own = Member::person(authority.issue(&user, &["system:nodes"]), "", &[]);
            members.push(Member { node: Some(node), ..own });
        }
        let accounts = accounts(plane, round).await;
        members.extend(accounts);
        members.extend(strangers(plane, &authority, round));
        Self { members }
    }

    /// Draws a caller to whom a rule may apply.
    pub fn bindable(&self, random: &mut Rng) -> usize {
        self.any(random, |member| !member.user.is_empty())
    }

    /// Draws the sender of a request, mostly an authenticated one.
    pub fn asking(&self, random: &mut Rng) -> usize {
        let anybody = random.u32(..8) == 0;
        self.any(random, |member| anybody || member.known)
    }

    fn any(&self, random: &mut Rng, is: impl Fn(&Member) -> bool) -> usize {
        let all: Vec<_> = (0..self.members.len()).filter(|at| is(&self.members[*at])).collect();
        all[random.usize(..all.len())]
    }
}

/// The name of a node of this round.
pub fn node(round: &str, at: usize) -> String {
    format!("{round}-node-{at}")
}

fn people(authority: &Authority, random: &mut Rng, round: &str) -> Vec<Member> {
    let pool: Vec<_> = (0..GROUPS).map(|at| format!("{round} team, {at} <a&b>")).collect();
    let mut members = Vec::new();
    for at in 0..PEOPLE {
        let user = format!("{round}:J\u{fc}rgen <j&k>, {at}");
        let groups: Vec<_> = pool.iter().filter(|_| random.u32(..3) == 0).map(String::as_str).collect();
        members.push(Member::person(authority.issue(&user, &groups), &user, &groups));
    }
    // One caller that may do anything, and one to whom the rules of its groups apply but no rule of its own.
    let master = format!("{round}-master");
    members.push(Member::person(authority.issue(&master, &["system:masters"]), "", &[]));
    let groups: Vec<_> = pool.iter().map(String::as_str).collect();
    members.push(Member::person(authority.issue(&format!("{round}-all"), &groups), "", &[]));
    // A certificate has precedence over a token.
    let both = format!("{round}-both");
    let identity = authority.issue(&both, &[&pool[0]]).and_token("nonsense");
    members.push(Member::person(identity, &both, &[&pool[0]]));
    members
}

async fn accounts(plane: &Plane, round: &str) -> Vec<Member> {
    let direct = plane.direct();
    let mut members = Vec::new();
    for (at, namespace) in HOMES.into_iter().cycle().take(4).enumerate() {
        let account = Account::create(&direct, namespace, &format!("{round}-{at}")).await;
        // One caller has a token that is signed here like those of the apiserver.
        let identity = match at {
            0 => plane.sign(&Plane::claims(&account, TWO_HOURS)),
            _ => account.token(&direct).await,
        };
        plane.knows(&identity).await;
        members.push(Member { user: account.user(), account: Some(account), ..Member::new(identity) });
    }
    let gone = Account::create(&direct, HOMES[0], &format!("{round}-gone")).await;
    let token = gone.token(&direct).await;
    direct.delete(&gone.path()).await;
    members.push(Member::unknown(Identity { name: format!("{} that is gone", token.name), ..token }));
    // Tokens with a valid signature and an invalid claim.
    let known = members[0].account.clone().expect("an account");
    let wrong = [
        ("exp", Plane::claims(&known, -TWO_HOURS)["exp"].clone()),
        ("aud", json!(["elsewhere"])),
        ("iss", json!("elsewhere")),
        ("sub", json!("system:serviceaccount:x:y")),
    ];
    for (key, value) in wrong {
        let mut claims = Plane::claims(&known, TWO_HOURS);
        claims[key] = value;
        let token = plane.sign(&claims);
        members.push(Member::unknown(Identity { name: format!("a token with a wrong {key}"), ..token }));
    }
    members
}

/// Callers that the apiserver authenticates without a wait, and callers whose authentication must fail.
fn strangers(plane: &Plane, authority: &Authority, round: &str) -> Vec<Member> {
    let foreign = Authority::foreign(plane);
    let user = format!("{round}-master");
    let yesterday = SystemTime::now() - Duration::from_secs(24 * 3600);
    let alice = plane.user("alice");
    let known = [
        alice.clone(),
        plane.user("bob"),
        authority.issue(&format!("{round}-nobody"), &[]),
        authority.issue(&format!("system:node:{}", node(round, 0)), &[]),
        authority.issue(&format!("system:node:{round}-ghost"), &["system:nodes"]),
        foreign.issue(&user, &["system:masters"]).and_token(&alice.token),
    ];
    let unknown = [
        Identity::anonymous(),
        Identity::token("a wrong token", "nonsense"),
        // A certificate without a name identifies no user, whatever its groups are.
        authority.issue("", &["system:masters"]),
        authority.issue_until(&user, &["system:masters"], yesterday),
        foreign.issue(&user, &["system:masters"]),
    ];
    known.into_iter().map(Member::new).chain(unknown.into_iter().map(Member::unknown)).collect()
}
