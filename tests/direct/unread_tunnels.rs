//! Unread tunnels, measured by the process's memory (P3).

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::direct::{self, Behind, Dir, PODS, Stub, stub, within};
use crate::process::Process;

/// A port-forward whose client stops reading: unread data stays at its source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_tunnels_use_little_memory_and_block_no_client() {
    const TUNNELS: usize = 40;
    const BYTES: usize = 4 << 20;
    let up = demo::upstream().pods(1).run().await;
    let behind = Behind::at(&up.url());
    let upstream = stub(move |mut request: Request<Incoming>| {
        let behind = behind.clone();
        async move {
            if !request.uri().path().contains("portforward") {
                return behind.answer(request).await;
            }
            let upgrade = hyper::upgrade::on(&mut request);
            drop(tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.expect("an upgrade"));
                let _ = io.write_all(&vec![b'f'; BYTES]).await;
                let _ = io.shutdown().await;
            }));
            let mut reply: Response<_> = Stub::reply(101, "");
            reply.headers_mut().insert("upgrade", "SPDY/3.1".parse()?);
            reply.headers_mut().insert("connection", "Upgrade".parse()?);
            Ok(reply)
        }
    })
    .await;
    let dir = Dir::new();
    let config = dir.file("config", "execOnLoopback: true");
    let process = Process::serve(&dir, &upstream.url(), &["--config", config.to_str().expect("a path")]).await;
    let client = process.client();
    let watch = client.watch(PODS).from(up.revision()).await;
    let before = process.resident_mebibytes();
    let path = "/api/v1/namespaces/default/pods/p/portforward?ports=80";
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n");
    let mut unread = Vec::new();
    for _ in 0..TUNNELS {
        let mut io = client.clone().narrow().connect().await.expect("a connection");
        io.write_all(head.as_bytes()).await.expect("sent");
        unread.push(io);
    }
    for n in 0..20 {
        watch.reached(up.create_pod("default", &format!("p{n}"))).await;
    }
    direct::eventually("all of them are tunnels", || async {
        upstream.seen(path.split('?').next().expect("a path")).len() == TUNNELS
    })
    .await;
    let grown = process.resident_mebibytes().saturating_sub(before);
    assert!(grown < 20, "{grown} MiB for {} MiB of unread data", (TUNNELS * BYTES) >> 20);
    // Another tunnel is read while these are not, and then one of them, to its end.
    let mut read = client.connect().await.expect("a connection");
    read.write_all(head.as_bytes()).await.expect("sent");
    for io in [&mut read, &mut unread[7]] {
        let mut received = Vec::new();
        within("the end of a tunnel", io.read_to_end(&mut received)).await.expect("a clean end");
        assert_eq!(received.iter().rev().take_while(|byte| **byte == b'f').count(), BYTES);
    }
}
