//! What clients get while the apiserver is away for long, with tokens and rules that the proxy checks itself. `make
//! long-outage` has it away for five minutes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::{interval, sleep};

use crate::agents::{Agent, HOLDERS, Mode, PER_NODE};
use crate::bed::{self, Answer, Authority, Driving, Http, Identity, Plane, Protocol, Proxy, RequestSpec, Watch};
use crate::bed::{eventually, log_line, number, version_of};

/// How far from the end of `outageGrace` a request may be for its answer to be certain.
const EDGE: Duration = Duration::from_secs(2);
/// The number of times that a client-go program is restarted in the outage.
const RESTARTS: u32 = 3;
/// How long a denial is cached.
const DENIED_TTL: Duration = Duration::from_secs(5);
/// The kind of client that lost its binding before the outage.
const FORMER: &str = "its binding was deleted before";
/// The clients that are there before the outage, and those that may nothing.
const KNOWN: usize = 10;

/// A kind of client, and how it asks.
type Kind = (&'static str, &'static str);

/// What each kind of client got: how often each status, before the end of `outageGrace` and after it.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<(Kind, &'static str), BTreeMap<String, u32>>,
    wrong: Vec<String>,
}

/// The clients, and the moment at which the apiserver was gone.
struct Outage<'a> {
    proxy: &'a Proxy,
    own: &'a Authority,
    gone: Instant,
    grace: Duration,
    tally: Mutex<Tally>,
}

impl Outage<'_> {
    /// The name of the time at which a request was sent and answered, if one of them is certain.
    fn phase(&self, sent: Instant) -> &'static str {
        if self.gone.elapsed() + EDGE < self.grace {
            "in the grace"
        } else if sent - self.gone > self.grace + EDGE {
            "after it"
        } else {
            "at its end"
        }
    }

    /// Records an answer. A denial from before may be cached for some seconds. `answered` says whether this kind of client gets data within `outageGrace`.
    fn count(&self, kind: Kind, answered: bool, sent: Instant, what: &Answer) {
        let (phase, mut tally) = (self.phase(sent), self.tally.lock().expect("not poisoned"));
        let text = if what.is_cached() { "cache" } else { "" };
        let label = format!("{} {text}", what.status.as_u16()).trim_end().to_owned();
        *tally.counts.entry((kind, phase)).or_default().entry(label).or_default() += 1;
        let is_denied = what.status == 403 && kind.0 == FORMER && self.gone.elapsed() < DENIED_TTL + EDGE;
        let is_status = (what.status == 503 || is_denied) && what.value()["kind"] == "Status";
        let right = match phase {
            "in the grace" if answered => what.status == 200 && what.is_cached(),
            "at its end" => what.status == 200 && answered || is_status,
            _ => is_status,
        };
        if !right {
            tally.wrong.push(format!("{kind:?} {phase}, {:.1?}: {} {}", self.gone.elapsed(), what.status, what.text()));
        }
    }

    /// A LIST, a GET and a WATCH, each on a new connection.
    async fn ask(&self, who: &'static str, answered: bool, identity: &Identity, agent: &Agent) {
        let target = self.proxy.target().by(identity);
        for (verb, protocol, request) in [
            ("LIST", Protocol::H2, RequestSpec::get(&agent.list())),
            ("GET", Protocol::H1, RequestSpec::get(&agent.get())),
            ("WATCH", Protocol::H2, agent.watch()),
        ] {
            let sent = Instant::now();
            let answer = answer(&Http::new(target.clone(), protocol), request).await;
            self.count((who, verb), answered, sent, &answer);
        }
    }

    /// A client-go informer with a token that was never seen starts in a process of its own. Returns it when it has
    /// synced. It goes on until it has seen the version in `until`.
    async fn restart_informer(&self, bed: &Plane, agent: &Agent, until: &Path) -> Driving {
        let (kubeconfig, ready) = (bed.file("informer.kubeconfig"), bed.file("informer.ready"));
        let target = self.proxy.target().by(&agent.identity);
        std::fs::write(&kubeconfig, target.kubeconfig()).expect("a file");
        let run = bed.drive("informers").file("--kubeconfig", &kubeconfig).at(&target).until(until);
        let run = run.file("--reference-kubeconfig", &bed.kubeconfig()).file("--ready-file", &ready);
        let mut run = run.args(["--resource", "services", "--watchlist", "off"]).start();
        run.awaits(&ready).await;
        let elapsed = self.gone.elapsed();
        assert!(elapsed < self.grace, "it synced too late: {elapsed:?}");
        log_line(&format!("a restarted client-go informer has synced {elapsed:.1?} after the apiserver was gone"));
        run
    }
}

/// The response; of a watch that was accepted, its first event.
async fn answer(client: &Http, request: RequestSpec) -> Answer {
    let is_watch = request.path.contains("watch=1");
    let response = client.send(request.clone()).await;
    if !is_watch || response.status() != 200 {
        let (head, body) = response.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.expect("a whole body").to_bytes();
        return Answer { status: head.status, headers: head.headers, body };
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let first = Watch::new(response).event().await.expect("an event");
    assert_eq!(first.kind, "ADDED", "{}: {}", request.path, first.line);
    Answer { status, headers, body: first.line.into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_clients_are_answered_while_the_apiserver_is_away() {
    let grace = Duration::from_secs(number("OUTAGE_SECONDS", 12));
    let Some(bed) = bed::own("long-outage").await else { return };
    let (direct, namespace, own) = (bed.direct(), bed.namespace("agents").await, Authority::of(&bed));
    let after = number("OUTAGE_AFTER_SECONDS", 5);
    let rounds = usize::try_from(grace.as_secs() + after).expect("a small number");
    let restarts = usize::try_from(RESTARTS).expect("a small number") * PER_NODE;
    let mut agents = Agent::create(&bed, &namespace, rounds + 1 + 2 * KNOWN + restarts).await;
    let mut agents_after = agents.split_off(2 * KNOWN);
    let (former, known) = (agents.split_off(KNOWN), agents);
    let more = format!(", outageGrace: {}s", grace.as_secs());
    let proxy = Mode::Local.plan(&bed, &more).start(&bed).await;
    let watches = before(&bed, &proxy, &known, &former).await;
    let until = bed.file("until");

    bed.kill_apiserver().await;
    let outage = Outage { proxy: &proxy, own: &own, gone: Instant::now(), grace, tally: Mutex::default() };
    let holder = agents_after.swap_remove(2);
    let informers = agents_after.split_off(rounds);
    let second = restarted_proxy_refuses(&bed, &outage, &holder, &more);
    let rounds = all_rounds(&bed, &outage, [&agents_after, &known, &former], &holder, &informers, &until);
    let (informers, ()) = tokio::join!(rounds, second);
    let tally = outage.tally.into_inner().expect("not poisoned");
    print(&tally);
    let (count, wrong) = (tally.wrong.len(), tally.wrong);
    assert_eq!(count, 0, "such as {}", wrong[..count.min(5)].join("\n"));
    recovers(&bed, &proxy, &known[0], &former[0], watches).await;
    let ports = json!({"metadata": {"name": "after"}, "spec": {"ports": [{"port": 80}]}});
    let service = direct.create(&format!("/api/v1/namespaces/{namespace}/services"), ports).await;
    std::fs::write(&until, version_of(&service).to_string()).expect("a file");
    for informer in informers {
        let summary = informer.finish().await.summary();
        log_line(&format!("a client-go informer that was restarted in the outage: {summary}"));
        assert_eq!(summary["reference"], "equal", "{summary}");
    }
    proxy.assert_sound();
}

/// Clients of each kind ask once a second, and some client-go programs restart, which it returns. `[new, known, former]`
/// are agents.
async fn all_rounds(
    bed: &Plane,
    outage: &Outage<'_>,
    [new, known, former]: [&[Agent]; 3],
    holder: &Agent,
    informers: &[Agent],
    until: &Path,
) -> Vec<Driving> {
    let informers = informers.iter().filter(|agent| agent.list().starts_with("/api/v1/services"));
    let mut informers = informers.zip(1..=RESTARTS).peekable();
    let (mut running, mut pace) = (Vec::new(), interval(Duration::from_secs(1)));
    for (round, agent) in new.iter().enumerate() {
        pace.tick().await;
        Box::pin(one_round(outage, round, agent, holder, known, former)).await;
        let elapsed = outage.gone.elapsed();
        if let Some((agent, _)) = informers.next_if(|(_, at)| elapsed > outage.grace * *at / (RESTARTS + 2)) {
            running.push(outage.restart_informer(bed, agent, until).await);
        }
        if round % 30 == 29 {
            let wrong = outage.tally.lock().expect("not poisoned").wrong.len();
            log_line(&format!("{elapsed:.0?} without the apiserver, {wrong} wrong"));
        }
    }
    assert!(informers.next().is_none(), "all client-go programs were restarted");
    running
}

/// What happens before the outage: some clients connect, and some lose their bindings, which the proxy sees.
async fn before(bed: &Plane, proxy: &Proxy, known: &[Agent], former: &[Agent]) -> Vec<Watch> {
    let mut watches = Vec::new();
    for agent in known {
        let client = proxy.client_of(&agent.identity);
        watches.push(client.watch(agent.watch()).await);
        eventually("it is cached", async || client.get(&agent.list()).await.is_cached().then_some(())).await;
    }
    let is_local = async || {
        let metrics = proxy.metrics().await;
        let reviewed = metrics.sum("kube_fanout_upstream_requests_total", &[("cause", "token_review")]);
        // A client whose token is known gets another one reviewed, unless it is verified.
        let status = proxy.client_of(&former[0].identity).get(&former[0].list()).await.status;
        let now = proxy.metrics().await;
        let asked = now.sum("kube_fanout_upstream_requests_total", &[("cause", "token_review")]) - reviewed;
        let verified = now.sum("kube_fanout_auth_tokens_verified_total", &[("result", "valid")]);
        let decides = now.sum("kube_fanout_auth_local_decisions_active", &[]) == 1;
        (status == 200 && asked == 0 && verified > 0 && decides).then_some(())
    };
    eventually("the proxy verifies tokens and decides", is_local).await;
    for agent in former {
        agent.revoke(&bed.direct()).await;
        let client = proxy.client_of(&agent.identity);
        eventually("it is refused", async || (client.get(&agent.list()).await.status == 403).then_some(())).await;
    }
    watches
}

/// Clients of each kind ask at the same time of the outage.
async fn one_round(
    outage: &Outage<'_>,
    round: usize,
    agent: &Agent,
    holder: &Agent,
    known: &[Agent],
    former: &[Agent],
) {
    let certificate = outage.own.issue(&format!("holder-{round}"), &[HOLDERS]);
    let stranger = outage.own.issue(&format!("stranger-{round}"), &[]);
    let (old, lost) = (&known[round % known.len()], &former[round % former.len()]);
    let mut forged = agent.identity.clone();
    let end = forged.token.len() - 10;
    let other = if &forged.token[end..=end] == "A" { "B" } else { "A" };
    forged.token.replace_range(end..=end, other);
    tokio::join!(
        outage.ask("a new token", true, &agent.identity, agent),
        outage.ask("a new certificate", true, &certificate, holder),
        outage.ask("a known token, reconnected", true, &old.identity, old),
        outage.ask(FORMER, false, &lost.identity, lost),
        outage.ask("a certificate without rights", false, &stranger, holder),
        outage.ask("a token with a false signature", false, &forged, agent),
    );
}

/// A proxy that is started in the outage knows no keys, rules or objects, and says so.
async fn restarted_proxy_refuses(bed: &Plane, outage: &Outage<'_>, agent: &Agent, more: &str) {
    sleep(outage.grace / 3).await;
    let second = Mode::Local.plan(bed, more).start_unready(bed).await;
    let certificate = outage.own.issue("restarted", &[HOLDERS]);
    for (who, identity) in [("a token", &agent.identity), ("a certificate", &certificate)] {
        for request in [RequestSpec::get(&agent.list()), RequestSpec::get(&agent.get()), agent.watch()] {
            let (sent, path) = (Instant::now(), request.path.clone());
            let answer = second.client_of(identity).fetch(request).await;
            log_line(&format!("a proxy started in the outage, {who}, {path}: {} {}", answer.status, answer.text()));
            outage.count(("a proxy started in the outage", who), false, sent, &answer);
        }
    }
    let ready = second.admin().get("/readyz").await;
    log_line(&format!("a proxy started in the outage, /readyz: {} {}", ready.status, ready.text()));
    assert_ne!(ready.status, 200, "it is not ready");
    second.assert_sound();
}

fn print(tally: &Tally) {
    for (((who, verb), phase), counts) in &tally.counts {
        let counts: Vec<_> = counts.iter().map(|(status, count)| format!("{count} × {status}")).collect();
        log_line(&format!("{who:32} {verb:6} {phase:13} {}", counts.join(", ")));
    }
}

/// The apiserver is back: the open watches have ended with 503 or continue, new requests are answered, and a client
/// that lost a right gets 403.
async fn recovers(bed: &Plane, proxy: &Proxy, known: &Agent, former: &Agent, watches: Vec<Watch>) {
    let mut ends = BTreeMap::<String, u32>::new();
    for mut watch in watches {
        let mut last = "open".to_owned();
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(100), watch.event()).await {
            if event.kind == "ERROR" {
                last = format!("ended with {}", event.object["code"]);
            }
        }
        *ends.entry(last).or_default() += 1;
    }
    log_line(&format!("watches that were open before the outage: {ends:?}"));
    let began = Instant::now();
    bed.start_apiserver().await;
    let of = async |agent: &Agent| proxy.client_of(&agent.identity).get(&agent.list()).await;
    eventually("the known client is answered", async || of(known).await.is_cached().then_some(())).await;
    log_line(&format!("answered {:.1?} after the apiserver's start", began.elapsed()));
    eventually("the former client gets 403", async || (of(former).await.status == 403).then_some(())).await;
}
