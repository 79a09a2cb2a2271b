use metrics::NoopRecorder;

use super::*;
use crate::upstream::CredentialSource;

/// Histograms hold what they are told until somebody reads them.
#[tokio::test]
async fn without_admin_pages_nothing_is_recorded() {
    let upstream = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("a URL"));
    let bound = Bound::bind(Serve { admin: None, ..Serve::in_front_of(upstream) }).await.expect("it can listen");
    assert_eq!(bound.admin_address(), None);
    // There can be one recorder in a process, and this is it.
    metrics::set_global_recorder(NoopRecorder).expect("there is none yet");
}
