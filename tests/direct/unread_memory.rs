//! Unread responses, measured by the process's memory (R-THREAT-11).

use crate::direct::{CONFIGMAPS, Dir};
use crate::process::Process;
use crate::shut::{LARGE, MIDDLING, Shut, with_objects};

const PER_CONNECTION: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_gets_use_bounded_process_memory() {
    let (up, dir) = (with_objects().await, Dir::new());
    let file = dir.file("config", "limits: {listMebibytes: 16}");
    let process = Process::serve(&dir, &up.url(), &["--config", file.to_str().expect("a path")]).await;
    let client = process.client();
    let watch = client.watch(CONFIGMAPS).initial_events().await;
    watch.listed().await;
    assert!(client.get(LARGE).await.is_cached() && client.get(MIDDLING).await.is_cached());
    for (path, let_in, most) in [(LARGE, 15, 24), (MIDDLING, 4 * PER_CONNECTION, 24)] {
        let before = process.resident_mebibytes();
        let (mut shut, mut has) = (Vec::new(), 0);
        for _ in 0..4 {
            let mut connection = Shut::to(&client).await;
            for _ in 0..PER_CONNECTION {
                has += usize::from(connection.request_status(path, "application/json").await == 200);
            }
            shut.push(connection);
        }
        assert_eq!(has, let_in, "{path}");
        let grown = process.resident_mebibytes().saturating_sub(before);
        assert!(grown <= most, "{path}: {grown} MiB");
        assert_eq!(client.get(MIDDLING).await.status, 200, "other requests are answered");
    }
}
