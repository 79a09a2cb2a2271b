//! The callers of one round. They are new, so that neither server has cached anything about them.

use std::time::{Duration, SystemTime};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::bed::rbac::subject;
use crate::bed::{Account, Authority, Identity, Plane};
use crate::differential::world::NAMESPACES;

/// Somebody who asks.
pub struct Member {
    pub identity: Identity,
    /// As rules name it; empty for whom no rule is about.
    user: String,
    groups: Vec<String>,
    account: Option<Account>,
    /// The node that it says it is.
    pub node: Option<String>,
    /// The apiserver knows who it is. It closes connections of those whom it does not know.
    pub known: bool,
}

pub struct Cast {
    pub members: Vec<Member>,
}

/// Callers by certificate.
const PEOPLE: usize = 8;
const GROUPS: usize = 5;
/// Not `world`, whose service accounts have no share in the apiserver when they list pods.
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

    /// One of the ways to speak of it in a binding.
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

    /// One whom a rule may be about.
    pub fn bindable(&self, random: &mut Rng) -> usize {
        self.any(random, |member| !member.user.is_empty())
    }

    /// One who asks: mostly somebody who is known.
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
    // One that may do anything, and one that every rule of its group is about but none of its own.
    let master = format!("{round}-master");
    members.push(Member::person(authority.issue(&master, &["system:masters"]), "", &[]));
    let groups: Vec<_> = pool.iter().map(String::as_str).collect();
    members.push(Member::person(authority.issue(&format!("{round}-all"), &groups), "", &[]));
    // A certificate counts before a token does.
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
        // One asks with a token that the apiserver would have made.
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
    // Tokens that were signed and are worth nothing.
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

/// Members that the apiserver has known all along, and some that it does not know.
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
        // No name is no user, whatever the groups.
        authority.issue("", &["system:masters"]),
        authority.issue_until(&user, &["system:masters"], yesterday),
        foreign.issue(&user, &["system:masters"]),
    ];
    known.into_iter().map(Member::new).chain(unknown.into_iter().map(Member::unknown)).collect()
}
