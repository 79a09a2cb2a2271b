//! Certificate chains that end at no trusted authority, although there are very many paths through them.

use std::fs;
use std::time::Duration;

use http::header::AUTHORIZATION;
use tokio::time::timeout;

use super::{ATTACKERS, Answers, Field, attack};
use crate::bed::{self, Authority, Http, Identity, Protocol, RequestSpec, unique};

/// The number of certificates that fit into a TLS message.
const CERTIFICATES: usize = 170;
/// Far longer than any refusal before authentication takes.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A client certificate, and others after it that could all have issued it and each other.
fn maze(field: &Field) -> Identity {
    let issuer = Authority::foreign(&field.bed);
    let leaf = issuer.issue("mallory", &[]).certificate.expect("a file");
    let namesakes: String = (0..CERTIFICATES).map(|_| issuer.namesake().pem()).collect();
    let path = field.bed.dir.join(unique("maze"));
    fs::write(&path, fs::read_to_string(leaf).expect("a file") + &namesakes).expect("a file");
    Identity::certificate("a maze", path)
}

/// The cost of a chain is bounded before authentication, and does not recur with every request.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unverifiable_certificate_chains_do_not_delay_others() {
    let Some(field) = Field::lay("").await else { return };
    let maze = maze(&field);
    let knock = async |http: &Http, token: &str, answers: &Answers| {
        let mut request = RequestSpec::get(&format!("{}?resourceVersion=0", field.pod));
        if !token.is_empty() {
            request.headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().expect("a token"));
        }
        // The client's own pool may lose a request that waited for a connection which then failed. Such a request has
        // no socket and waits forever.
        match timeout(ANSWERED_WITHIN, http.try_fetch(request)).await {
            Ok(Ok(answer)) => answers.put(answer.status.as_u16().to_string()),
            Ok(Err(_)) => answers.put("ended"),
            Err(_) => answers.put("lost by the client"),
        }
    };
    let token = field.bed.user("admin").token;
    // First on one connection each, with an additional valid token. Then on new connections, with many concurrent
    // requests.
    for (what, token, at_once) in [("chains beside a token", token.as_str(), 1), ("chains alone", "", 100)] {
        field
            .besiege(what, None, async |over| {
                let answers = Answers::default();
                let target = field.proxy.target().by(&maze);
                let clients: Vec<_> = (0..ATTACKERS).map(|_| Http::new(target.clone(), Protocol::H2)).collect();
                let (clients, knock) = (&clients, &knock);
                let blow = |who: usize, _, answers: Answers| async move {
                    let knocks = (0..at_once).map(|_| knock(&clients[who], token, &answers));
                    futures_util::future::join_all(knocks).await;
                };
                attack(ATTACKERS, &over, &answers, blow).await;
                answers
            })
            .await;
    }
    assert_eq!(field.proxy.client().get(&field.pod).await.status, 200);
    bed::log_line("authenticated clients are answered");
}
