//! The pods of the manifests in deploy/, and the systemd unit: their privileges on the machine, and that their parts
//! fit together.

use std::path::Path;

use serde_json::{Value, json};

use crate::deploy::{deployed, documents};
use crate::process::run;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Time for the last audit records after the drain, in seconds.
const RECORDS: u64 = 5;

fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn drain_seconds() -> u64 {
    let nowhere = kube_fanout::upstream::CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("a URL"));
    kube_fanout::config::ServeSettings::for_upstream(nowhere).drain.as_secs()
}

/// The pod specification of a workload. `None` for other kinds, and for patches, which name no container.
fn pod_of(document: &Value) -> Option<&Value> {
    let spec = match document["kind"].as_str()? {
        "Pod" => &document["spec"],
        "Deployment" | "DaemonSet" => &document["spec"]["template"]["spec"],
        _ => return None,
    };
    spec["containers"].is_array().then_some(spec)
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(move |key| pod[key].as_array()).flatten()
}

/// Unnecessary privileges of a container.
fn excess_of(pod: &Value, container: &Value) -> Vec<String> {
    let own = &container["securityContext"];
    let user = [&own["runAsUser"], &pod["securityContext"]["runAsUser"]].into_iter().find_map(Value::as_u64);
    let rules = [
        ("its user is not set, or is root", user.is_some_and(|user| user > 0)),
        ("it may write to its root", own["readOnlyRootFilesystem"] == true),
        ("it may gain privileges", own["allowPrivilegeEscalation"] == false && own["privileged"].is_null()),
        ("it has capabilities", own["capabilities"] == json!({"drop": ["ALL"]})),
        ("it has a port of the node", !container["ports"].to_string().contains("hostPort")),
    ];
    let name = container["name"].as_str().unwrap_or("?");
    rules.iter().filter(|(_, holds)| !holds).map(|(what, _)| format!("{name}: {what}")).collect()
}

/// Unnecessary privileges of a pod.
fn excess(pod: &Value) -> Vec<String> {
    let own = &pod["securityContext"];
    let has_token = pod["automountServiceAccountToken"] != false;
    let mut host_paths = pod["volumes"].as_array().into_iter().flatten().filter(|volume| !volume["hostPath"].is_null());
    let is_read_only = |volume: &Value| {
        let mut mounts = containers(pod).filter_map(|of| of["volumeMounts"].as_array()).flatten();
        mounts.all(|mount| mount["name"] != volume["name"] || mount["readOnly"] == true)
    };
    let rules = [
        ("it may run as root", own["runAsNonRoot"] == true),
        ("it has no seccomp profile", own["seccompProfile"]["type"] == "RuntimeDefault"),
        ("it sees processes of the node", pod["hostPID"].is_null() && pod["hostIPC"].is_null()),
        ("it has a token of the default account", !has_token || pod["serviceAccountName"].is_string()),
        ("other containers than the proxy have its token", !has_token || containers(pod).count() == 1),
        ("it may write to the node", host_paths.all(is_read_only)),
    ];
    let broken = rules.iter().filter(|(_, holds)| !holds).map(|(what, _)| (*what).to_owned());
    broken.chain(containers(pod).flat_map(|container| excess_of(pod, container))).collect()
}

#[test]
fn deployed_pods_have_minimal_host_privileges() {
    let mut pods = Vec::new();
    for (name, text) in deployed() {
        for document in documents(&text) {
            let Some(pod) = pod_of(&document) else { continue };
            assert_eq!(excess(pod), Vec::<String>::new(), "{name}");
            let is_static = name.ends_with("/static-pod.yaml");
            assert_eq!(pod["hostNetwork"] == true, is_static, "{name}");
            pods.push(pod.clone());
        }
    }
    assert_eq!(pods.len(), 5, "the sidecar, the static pod, and central, zones' and nodes' proxies");
    let whole = pods.iter().find(|pod| pod["serviceAccountName"] == "kube-fanout").expect("a central proxy");
    for (pointer, value) in [
        ("/securityContext/runAsNonRoot", json!(null)),
        ("/securityContext/runAsUser", json!(0)),
        ("/securityContext/seccompProfile/type", json!("Unconfined")),
        ("/serviceAccountName", json!(null)),
        ("/containers/0/securityContext", json!({})),
        ("/containers/0/securityContext/readOnlyRootFilesystem", json!(false)),
        ("/containers/0/securityContext/capabilities", json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})),
        ("/containers/0/ports/0", json!({"hostPort": 8443})),
    ] {
        let mut spoilt = whole.clone();
        *spoilt.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        assert!(!excess(&spoilt).is_empty(), "{pointer}");
    }
    let mut spoilt = whole.clone();
    spoilt["volumes"][0] = json!({"name": "node", "hostPath": {"path": "/"}});
    spoilt["containers"][0]["volumeMounts"][0] = json!({"name": "node", "mountPath": "/node"});
    assert_eq!(excess(&spoilt), ["it may write to the node"]);
}

/// Proxies have a memory limit, half of which feeds use (src/config/memory.rs), probes, and a termination period that
/// covers the drain.
#[test]
fn deployed_pods_have_limits_probes_and_grace_period() {
    for (name, text) in deployed() {
        for document in documents(&text) {
            let Some(pod) = pod_of(&document) else { continue };
            let proxy = containers(pod).find(|container| container["args"][0] == "serve");
            let proxy = proxy.unwrap_or_else(|| panic!("{name}: no proxy"));
            let resources = &proxy["resources"];
            assert!(resources["limits"]["memory"].is_string() && resources["requests"]["cpu"].is_string(), "{name}");
            assert_eq!(proxy["livenessProbe"]["httpGet"]["path"], "/livez", "{name}");
            assert_eq!(proxy["startupProbe"]["periodSeconds"], 1, "{name}");
            let before = proxy["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or_default();
            let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("a time");
            assert!(grace >= before + drain_seconds() + RECORDS, "{name}: {grace}");
            let behind_a_service = document["kind"] != "Pod";
            assert_eq!(before > 0, behind_a_service, "{name}");
            assert_eq!(proxy["readinessProbe"]["httpGet"]["path"] == "/readyz", behind_a_service, "{name}");
        }
    }
}

#[test]
fn deployed_container_arguments_are_valid() {
    for (name, text) in deployed() {
        for document in documents(&text) {
            let Some(pod) = pod_of(&document) else { continue };
            let proxy = containers(pod).find(|container| container["name"] == "kube-fanout");
            let args = proxy.and_then(|proxy| proxy["args"].as_array()).unwrap_or_else(|| panic!("{name}: no proxy"));
            let of = document["metadata"]["labels"]["app.kubernetes.io/component"].as_str().unwrap_or("sidecar");
            let sample = format!("{ROOT}/config/{of}.yaml");
            let placed = |args: &Value| args.as_str().expect("text").replace("/etc/kube-fanout/config.yaml", &sample);
            let mut arguments = vec!["config".to_owned(), "check".to_owned()];
            arguments.extend(args.iter().skip(1).map(placed));
            if of == "node" {
                arguments.push("--node-name=n1".to_owned());
            }
            let checked = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(checked.code, Some(0), "{name}: {}", checked.stderr);
        }
    }
}

/// Selectors of a workload's pods in one of the bases.
fn selectors(document: &Value) -> Vec<&Value> {
    match document["kind"].as_str() {
        Some("Service") => vec![&document["spec"]["selector"]],
        Some("PodDisruptionBudget") => vec![&document["spec"]["selector"]["matchLabels"]],
        Some("NetworkPolicy") => vec![&document["spec"]["podSelector"]["matchLabels"]],
        Some("Deployment" | "DaemonSet") => {
            let spread = document["spec"]["template"]["spec"]["topologySpreadConstraints"].as_array();
            let spread = spread.into_iter().flatten().map(|of| &of["labelSelector"]["matchLabels"]);
            spread.chain([&document["spec"]["selector"]["matchLabels"]]).collect()
        }
        _ => Vec::new(),
    }
}

/// By default tainted nodes count as places for pods, so the pods of a lost zone would stay pending.
#[test]
fn nodes_that_pods_do_not_tolerate_do_not_count_for_spreading() {
    let mut checked = Vec::new();
    for (name, text) in deployed() {
        for document in documents(&text) {
            let spread = document["spec"]["template"]["spec"]["topologySpreadConstraints"].as_array();
            for constraint in spread.into_iter().flatten() {
                assert_eq!(constraint["nodeTaintsPolicy"], "Honor", "{name}: {constraint}");
                checked.push(format!("{name} {}", constraint["topologyKey"]));
            }
        }
    }
    assert_eq!(checked.len(), 4, "{checked:?}");
}

#[test]
fn manifest_selectors_and_ports_match_configuration() {
    for (base, workload, parts) in [
        ("central", "deployment", &["service", "disruption", "network", "deployment"][..]),
        ("zone", "deployment", &["service", "disruption", "network", "deployment"]),
        ("node", "daemonset", &["service", "network", "daemonset"]),
    ] {
        let read = |part: &str| -> Value {
            let text = text(&format!("deploy/kustomize/{base}/{part}.yaml"));
            serde_saphyr::from_str(&text).expect("one document")
        };
        let workload = read(workload);
        let template = &workload["spec"]["template"];
        let labels = &template["metadata"]["labels"];
        assert!(labels.as_object().is_some_and(|labels| labels.len() == 2), "{labels}");
        for part in parts {
            let document = read(part);
            let selectors = selectors(&document);
            assert!(!selectors.is_empty() && selectors.iter().all(|of| *of == labels), "{base} {part}");
        }
        let config = read("config");
        let port = |address: &Value| address.as_str().and_then(|text| text.rsplit(':').next()?.parse::<u16>().ok());
        let named = [
            ("https", &config["listen"][0]),
            ("health", &config["healthzBindAddress"]),
            ("metrics", &config["metricsBindAddress"]),
        ];
        let ports = named.map(|(name, at)| json!({"name": name, "containerPort": port(at)}));
        assert_eq!(template["spec"]["containers"][0]["ports"], json!(ports), "{base}");
        let accounts = text(&format!("deploy/kustomize/{base}/rbac.yaml"));
        let mut accounts = documents(&accounts).filter(|document| document["kind"] == "ServiceAccount");
        let named = &template["spec"]["serviceAccountName"];
        assert!(accounts.any(|account| account["metadata"]["name"] == *named), "{base}: {named}");
    }
}

#[test]
fn manifest_configurations_equal_samples() {
    for name in ["central", "node", "zone"] {
        let sample = text(&format!("config/{name}.yaml"));
        for copy in [format!("deploy/kustomize/{name}/config.yaml"), format!("deploy/chart/files/{name}.yaml")] {
            assert!(text(&copy) == sample, "{copy} is not config/{name}.yaml: run `make manifests`");
        }
    }
}

#[test]
fn chart_version_matches_crate_and_schema_covers_values() {
    let parse = |name: &str| -> Value { serde_saphyr::from_str(&text(name)).expect("YAML") };
    let chart = parse("deploy/chart/Chart.yaml");
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
    let schema: Value = serde_json::from_str(&text("deploy/chart/values.schema.json")).expect("JSON");
    assert_eq!(schema["additionalProperties"], false);
    for (key, value) in parse("deploy/chart/values.yaml").as_object().expect("values") {
        let known = &schema["properties"][key];
        assert!(known.is_object(), "{key}");
        for inner in value.as_object().into_iter().flatten().map(|(inner, _)| inner) {
            let is_known = known["properties"][inner].is_object() || known["additionalProperties"].is_object();
            assert!(is_known, "{key}.{inner}");
        }
    }
}

#[test]
fn systemd_unit_uses_sample_socket_and_is_hardened() {
    let (service, socket) = (text("deploy/systemd/kube-fanout.service"), text("deploy/systemd/kube-fanout.socket"));
    let values = |unit: &str, key: &str| -> Vec<String> {
        let of_key = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        unit.lines().filter_map(of_key).collect()
    };
    let edge: Value = serde_saphyr::from_str(&text("config/edge.yaml")).expect("YAML");
    let stream = values(&socket, "ListenStream");
    assert_eq!(edge["listen"], json!([format!("unix:{}", stream[0])]));
    assert_eq!(values(&socket, "SocketMode"), ["0600"]);
    assert_eq!(values(&socket, "SocketUser"), values(&service, "User"), "it answers its own user and root");
    assert_eq!(values(&service, "Requires"), ["kube-fanout.socket"]);
    for (key, value) in [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("CapabilityBoundingSet", ""),
        ("MemoryDenyWriteExecute", "yes"),
        ("RestrictNamespaces", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
    ] {
        assert_eq!(values(&service, key), [value], "{key}");
    }
    let number = |key: &str| values(&service, key)[0].trim_end_matches('s').parse::<u64>().expect("a number");
    let stop = number("TimeoutStopSec");
    assert!(stop >= drain_seconds() + RECORDS, "{stop}");
    assert!(number("StartLimitBurst") * number("RestartSec") > number("StartLimitIntervalSec"), "restarts never end");
}
