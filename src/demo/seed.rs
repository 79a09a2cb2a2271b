//! What the store holds before the first request.

use super::clock;
use super::json::Json;
use super::kinds::{KINDS, Kind, PODS, by_plural};
use super::pods::{NAMESPACES, nth, parse};
use super::store::{Change, Store};
use super::write::split;

const DEPLOYMENTS: [&str; 4] = ["api", "front", "gateway", "worker"];

pub(crate) fn seed(store: &Store, pods: usize, nodes: usize) {
    for namespace in NAMESPACES.into_iter().chain(["kube-system"]) {
        let labels = format!(r#""labels":{{"kubernetes.io/metadata.name":"{namespace}"}}"#);
        put_text(
            store,
            "namespaces",
            &format!(
                r#"{{"metadata":{{"name":"{namespace}",{labels}}},"spec":{{"finalizers":["kubernetes"]}},"status":{{"phase":"Active"}}}}"#
            ),
        );
        put_text(
            store,
            "configmaps",
            &format!(
                r#"{{"metadata":{{"name":"kube-root-ca.crt","namespace":"{namespace}"}},"data":{{"ca.crt":"-----BEGIN CERTIFICATE-----\ndemo\n-----END CERTIFICATE-----\n"}}}}"#
            ),
        );
    }
    for n in 0..nodes {
        put_text(store, "nodes", &node(n));
    }
    for app in DEPLOYMENTS {
        put_text(store, "deployments", &deployment(app));
        put_text(store, "services", &service(app));
    }
    put_text(
        store,
        "secrets",
        r#"{"metadata":{"name":"token","namespace":"default"},"data":{"token":"ZGVtbw=="},"type":"Opaque"}"#,
    );
    for (name, color) in [("gear", "red"), ("lever", "green"), ("spring", "blue")] {
        put_text(
            store,
            "widgets",
            &format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"default","labels":{{"color":"{color}"}}}},"spec":{{"color":"{color}","size":3}}}}"#
            ),
        );
    }
    put_text(store, "customresourcedefinitions", WIDGETS);
    seed_api_services(store);
    for n in 0..pods {
        let pod = nth(n, nodes);
        // An unconditional decision cannot be refused.
        let _ = store.write(PODS, &pod.key(), |_| {
            let (meta, rest) = pod.document(None);
            Ok(Some(Change::Put(meta, rest)))
        });
    }
    seed_events(store);
    store.forget();
}

fn seed_api_services(store: &Store) {
    let mut seen = vec![];
    for Kind { group, version, .. } in &KINDS {
        if seen.contains(&(group, version)) {
            continue;
        }
        seen.push((group, version));
        let group_field = if group.is_empty() { String::new() } else { format!(r#""group":"{group}","#) };
        put_text(
            store,
            "apiservices",
            &format!(
                r#"{{"metadata":{{"name":"{version}.{group}","labels":{{"kube-aggregator.kubernetes.io/automanaged":"onstart"}}}},"spec":{{{group_field}"version":"{version}","groupPriorityMinimum":18000,"versionPriority":1}},"status":{{"conditions":[{{"type":"Available","status":"True","lastTransitionTime":"{}","reason":"Local","message":"Local APIServices are always available"}}]}}}}"#,
                clock::rfc3339(clock::unix_seconds())
            ),
        );
    }
}

fn seed_events(store: &Store) {
    let now = clock::rfc3339(clock::unix_seconds());
    let (pods, ..) = store.now(PODS);
    for pod in pods.iter().filter(|pod| pod.meta.namespace == "default").take(5) {
        let (namespace, name, uid) = (&pod.meta.namespace, &pod.meta.name, &pod.meta.uid);
        put_text(
            store,
            "events",
            &format!(
                r#"{{"metadata":{{"name":"{name}.17f0","namespace":"{namespace}"}},"involvedObject":{{"kind":"Pod","namespace":"{namespace}","name":"{name}","uid":"{uid}","apiVersion":"v1"}},"reason":"Started","message":"Started container main","source":{{"component":"kubelet","host":"node-0"}},"firstTimestamp":"{now}","lastTimestamp":"{now}","count":1,"type":"Normal","eventTime":null,"reportingComponent":"kubelet","reportingInstance":"node-0"}}"#
            ),
        );
    }
}

fn put_text(store: &Store, plural: &str, text: &str) {
    if let Some(kind) = by_plural(plural) {
        put(store, kind, parse(text));
    }
}

/// Creates or replaces an object as it stands, without the checks that a request would meet. Returns the revision.
pub(crate) fn put(store: &Store, kind: usize, document: Json) -> u64 {
    let (mut meta, rest) = split(document);
    let key = meta.key();
    let written = store.write(kind, &key, |current| {
        let before = current.map(|current| &current.meta);
        meta.uid = before.map_or_else(super::uid, |before| before.uid.clone());
        meta.created = before.map_or_else(|| clock::rfc3339(clock::unix_seconds()), |before| before.created.clone());
        let generation = before.and_then(|before| before.generation).map_or(1, |generation| generation + 1);
        meta.generation = KINDS[kind].generation.then_some(generation);
        Ok(Some(Change::Put(meta, rest)))
    });
    written.ok().flatten().map_or(0, |written| written.revision)
}

fn node(n: usize) -> String {
    let now = clock::rfc3339(clock::unix_seconds());
    format!(
        concat!(
            r#"{{"metadata":{{"name":"node-{n}","labels":{{"kubernetes.io/hostname":"node-{n}","kubernetes.io/os":"linux","topology.kubernetes.io/zone":"zone-{zone}"}}}},"#,
            r#""spec":{{"podCIDR":"10.{n}.0.0/24"}},"status":{{"capacity":{{"cpu":"16","memory":"64Gi","pods":"110"}},"allocatable":{{"cpu":"15","memory":"60Gi","pods":"110"}},"#,
            r#""conditions":[{{"type":"Ready","status":"True","lastHeartbeatTime":"{now}","lastTransitionTime":"{now}","reason":"KubeletReady","message":"kubelet is posting ready status"}}],"#,
            r#""addresses":[{{"type":"InternalIP","address":"192.168.0.{host}"}},{{"type":"Hostname","address":"node-{n}"}}],"daemonEndpoints":{{"kubeletEndpoint":{{"Port":10250}}}},"#,
            r#""nodeInfo":{{"machineID":"m{n}","systemUUID":"s{n}","bootID":"b{n}","kernelVersion":"6.12.0","osImage":"Demo Linux","containerRuntimeVersion":"containerd://2.1.0","kubeletVersion":"v1.36.2","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"}}}}}}"#
        ),
        n = n,
        zone = n % 3,
        now = now,
        host = n % 250 + 1,
    )
}

fn deployment(app: &str) -> String {
    format!(
        concat!(
            r#"{{"metadata":{{"name":"{app}","namespace":"default","labels":{{"app":"{app}"}}}},"spec":{{"replicas":3,"selector":{{"matchLabels":{{"app":"{app}"}}}},"#,
            r#""template":{{"metadata":{{"labels":{{"app":"{app}"}}}},"spec":{{"containers":[{{"name":"main","image":"registry.example/{app}:v1.42.0"}}]}}}},"strategy":{{"type":"RollingUpdate"}}}},"#,
            r#""status":{{"observedGeneration":1,"replicas":3,"updatedReplicas":3,"readyReplicas":3,"availableReplicas":3}}}}"#
        ),
        app = app
    )
}

fn service(app: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{app}","namespace":"default"}},"spec":{{"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":"http"}}],"selector":{{"app":"{app}"}},"clusterIP":"10.96.0.{}","type":"ClusterIP"}},"status":{{"loadBalancer":{{}}}}}}"#,
        app.len() + 10
    )
}

const WIDGETS: &str = concat!(
    r#"{"metadata":{"name":"widgets.demo.kube-fanout.io"},"spec":{"group":"demo.kube-fanout.io","names":{"plural":"widgets","singular":"widget","shortNames":["wd"],"kind":"Widget","listKind":"WidgetList","categories":["all"]},"#,
    r#""scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"selectableFields":[{"jsonPath":".spec.color"}]}],"conversion":{"strategy":"None"}},"#,
    r#""status":{"conditions":[{"type":"Established","status":"True","lastTransitionTime":null,"reason":"InitialNamesAccepted","message":"the initial names have been accepted"}],"acceptedNames":{"plural":"widgets","singular":"widget","shortNames":["wd"],"kind":"Widget","listKind":"WidgetList","categories":["all"]},"storedVersions":["v1"]}}"#
);
