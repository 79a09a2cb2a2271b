use metrics::NoopRecorder;

use super::*;
use crate::upstream::CredentialSource;

/// A recorder that nobody reads would be a leak: histograms hold every sample until they are read.
#[tokio::test]
async fn without_admin_pages_nothing_is_recorded() {
    let upstream = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("a URL"));
    let bound = Bound::bind(Serve { admin: None, ..Serve::in_front_of(upstream) }).await.expect("it can listen");
    assert_eq!(bound.admin_address(), None);
    // A process can have one recorder. This one is accepted, so none was installed before.
    metrics::set_global_recorder(NoopRecorder).expect("there is none yet");
}
