//! The proxy's own identity loses a permission while clients watch the resource that needs it. The test checks what
//! these clients see, and that other watches continue (R-UPSTREAM-5).

use std::time::Duration;

use serde_json::json;

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Account, Ended, Http, Plan, Plane, RequestSpec, Watch, promised, scratch_file, unique};

/// The time after the first refusal within which the proxy stops serving what it cached by the lost permission.
const BOUND: Duration = Duration::from_secs(60);

/// Grants an account read access to a resource in all namespaces. Returns the name of the binding.
async fn let_read(plane: &Plane, account: &Account, resource: &str) -> String {
    let (direct, name) = (plane.direct(), unique("own"));
    let rules = json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get", "list", "watch"]}]);
    direct.create(&collection(None, "roles"), json!({"metadata": {"name": name}, "rules": rules})).await;
    let bound = binding(&name, "ClusterRole", &name, &subject("User", &account.user()));
    direct.create(&collection(None, "rolebindings"), bound).await;
    let watch = json!({"verb": "watch", "resource": resource});
    may(&direct, json!({"user": account.user(), "resourceAttributes": watch})).await;
    format!("{}/{name}", collection(None, "rolebindings"))
}

/// Watches from a version that the storage is beyond, as it is when an apiserver has renewed its lease. So the feed
/// begins with a state of unknown age.
async fn watch(client: &Http, direct: &Http, path: &str) -> Watch {
    let version = direct.version(path).await;
    direct.create("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": unique("other")}})).await;
    client.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_is_no_longer_served_after_proxy_loses_permission() {
    let Some(bed) = bed::alone().await else { return };
    let (direct, namespace) = (bed.direct(), bed.namespace("own").await);
    let account = Account::create(&direct, &namespace, "proxy").await;
    let identity = account.token(&direct).await;
    bed.knows(&identity).await;
    let lost = let_read(&bed, &account, "configmaps").await;
    let_read(&bed, &account, "services").await;
    let kubeconfig = scratch_file("own.kubeconfig");
    std::fs::write(&kubeconfig, bed.target().by(&identity).kubeconfig()).expect("a file");
    let proxy = Plan::tls().upstream(&kubeconfig).start(&bed).await;
    let client = proxy.client();
    let [maps, services] = ["configmaps", "services"].map(|what| format!("/api/v1/namespaces/{namespace}/{what}"));
    let cached = format!("{maps}?resourceVersion=0");
    let mut watches = [watch(&client, &direct, &maps).await, watch(&client, &direct, &services).await];
    direct.create(&maps, json!({"metadata": {"name": "before"}})).await;
    assert_eq!(watches[0].change().await.name(), "before", "it is live");
    assert!(client.get(&cached).await.is_cached());
    // A strict LIST proves the age of the state. Without it, the restart would end this watch too.
    assert!(client.list_now(RequestSpec::get(&services)).await.is_cached());

    // The apiserver authorizes a watch only at its start. The restart ends the open watch, so that it has to start
    // again.
    direct.delete(&lost).await;
    bed.kill_apiserver().await;
    bed.start_apiserver().await;
    let refused = promised(BOUND, "it is served no more", async || {
        let answer = client.try_get(&cached).await?;
        (!answer.is_cached()).then_some(answer)
    });
    let refused = refused.await;
    assert_eq!(refused.status, 403, "upstream says so itself: {}", refused.text());
    assert!(refused.text().contains(&account.user()), "{}", refused.text());
    let [mut ended, mut open] = watches;
    let (events, end) = bed::within("its watch ends", ended.rest()).await;
    assert_eq!(end, Ended::Clean, "{events:?}");
    assert!(events.iter().all(|event| event.kind != "ADDED"), "{events:?}");
    let again = client.send(RequestSpec::get(&format!("{maps}?watch=1"))).await;
    assert_eq!(again.status(), 403, "the next request gets upstream's refusal");
    let port = json!([{"port": 80}]);
    direct.create(&services, json!({"metadata": {"name": "behind"}, "spec": {"ports": port}})).await;
    assert_eq!(open.change().await.name(), "behind", "watches that are still permitted continue");

    let_read(&bed, &account, "configmaps").await;
    let answer = client.get(&maps).await;
    assert_eq!(answer.status, 200, "with the right it is answered again: {}", answer.text());
    proxy.assert_sound();
}
