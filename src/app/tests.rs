use ::metrics::NoopRecorder;

use super::*;
use crate::upstream::CredentialSource;

fn in_front_of_nobody() -> ServeSettings {
    let upstream = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("a URL"));
    ServeSettings { admin: None, ..ServeSettings::for_upstream(upstream) }
}

/// The kubelet or systemd then starts a new process with all its tasks.
#[tokio::test]
async fn process_exits_naming_required_task_that_panicked() {
    let bound = BoundApp::bind(in_front_of_nobody()).await.expect("it can listen");
    bound.tasks.spawn("one of many", async { panic!("not needed") });
    let audit_tasks = bound.audit_tasks.clone();
    let running = tokio::spawn(bound.run(std::future::pending(), std::future::pending()));
    audit_tasks.spawn_critical("audit", async { panic!("needed") });
    let lost = running.await.expect("it returns").expect_err("a task is lost");
    assert_eq!(lost.to_string(), "the required task \"audit\" panicked");
}

/// A recorder that is never read would be a leak, because histograms hold every sample until they are read.
#[tokio::test]
async fn metrics_recorder_is_not_installed_without_admin_listener() {
    let bound = BoundApp::bind(in_front_of_nobody()).await.expect("it can listen");
    assert_eq!(bound.admin_address(), None);
    // A process can have only one recorder. This one is accepted, so none was installed before.
    ::metrics::set_global_recorder(NoopRecorder).expect("there is none yet");
}
