//! What a listener knows about its clients, and how it closes their connections. Only `net` is tested, with a handler
//! that records its peers.

use std::time::Duration;

use http::Method;
use kube_fanout::net::{ClientCertificates, ConnectionLimits, Listener, ListenerTls, PeerAddress};

use crate::direct::{self, Dir, Listening, PODS, Protocol, Trust, eventually, pair, within};

fn bind(address: &str) -> Listener {
    Listener::bind(&address.parse().expect("an address")).expect("it can be bound")
}

#[tokio::test]
async fn client_certificate_is_passed_with_each_request() {
    let (dir, own) = (Dir::new(), pair());
    let names = vec!["127.0.0.1".to_owned()];
    let tls = ListenerTls::self_signed(names, ClientCertificates::Requested).expect("a certificate");
    let ca = dir.file("ca.pem", tls.self_signed_pem().expect("we made it"));
    let listening = Listening::start(bind("127.0.0.1:0"), Some(tls), ConnectionLimits::default());
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let without_certificate = listening.client().trusting(Some(Trust::in_file(&ca))).over(protocol);
        assert_eq!(without_certificate.get("/").await.status, 200);
        assert_eq!(listening.certificate_at("/"), None);
        let with_certificate = listening.client().trusting(Some(Trust::showing(&ca, &own))).over(protocol);
        assert_eq!(with_certificate.get("/").await.status, 200);
        assert_eq!(listening.certificate_at("/"), Some(own.cert.der().to_vec()));
    }
}

#[tokio::test]
async fn connection_sends_last_response_before_close() {
    let listening = Listening::start(bind("127.0.0.1:0"), None, ConnectionLimits::default());
    let client = listening.client().multiplexed().await;
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(client.get("/leave").await.text(), "here");
    let gone = || async { client.request(Method::GET, "/").try_send().await.is_err() };
    eventually("it takes no more requests", gone).await;
    let one = listening.client();
    assert_eq!(one.get("/").await.header("connection"), None);
    assert_eq!(one.get("/leave").await.header("connection"), Some("close"));
}

#[tokio::test]
async fn unix_socket_rejects_other_uids() {
    let dir = Dir::new();
    let path = format!("unix:{}", dir.join("api.sock").display());
    let open = Listening::start(bind(&path), None, ConnectionLimits::default());
    assert_eq!(open.client().get("/").await.status, 200);
    let PeerAddress::Unix { uid: Some(uid) } = open.last_peer("/").address else { panic!("the kernel knows") };
    open.stop().await;
    let shut = Listening::start(bind(&path).for_uids(vec![uid + 1]), None, ConnectionLimits::default());
    let refused = shut.client().request(Method::GET, "/").try_send().await;
    assert!(refused.is_err() && shut.requests() == 0, "{refused:?}");
}

#[tokio::test]
async fn connection_age_limit_stops_requests_but_keeps_watch() {
    let up = demo::upstream().pods(2).run().await;
    let age = Duration::from_secs(2);
    let app = direct::app(&up).with(|config| config.connections.connection_age_max = age).run().await;
    let (client, watch) = within("a watch before the connection has its age", async {
        loop {
            let client = app.multiplexed().await;
            if let Ok(watch) = client.watch(PODS).from(up.revision()).try_open().await {
                break (client, watch.unwrap_or_else(|refused| panic!("{}", refused.text())));
            }
        }
    })
    .await;
    watch.reached(up.create_pod("default", "before")).await;
    let gone = || async { client.request(Method::GET, "/version").try_send().await.is_err() };
    eventually("it takes no more requests", gone).await;
    watch.reached(up.create_pod("default", "after")).await;
    assert!(watch.is_open(), "the watch is not cut");
    assert!(app.over(Protocol::Http2).get("/version").await.status == 200, "others are welcome");
}
