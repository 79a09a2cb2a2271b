//! The manifests in deploy/: the permissions and the memory that they grant, read from their text.

use std::path::Path;

use serde_json::Value;

pub fn documents(text: &str) -> impl Iterator<Item = Value> {
    text.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("YAML"))
}

/// Documents whose kind has this suffix: `Role` matches roles of both scopes.
fn of_kind<'a>(text: &'a str, end: &'a str) -> impl Iterator<Item = Value> + 'a {
    documents(text).filter(move |document| document["kind"].as_str().is_some_and(|kind| kind.ends_with(end)))
}

/// Rules of all roles in a manifest file, each with the name of its role.
fn rules(text: &str) -> Vec<(String, Value)> {
    let of = |role: Value| {
        let name = role["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        rules.into_iter().map(move |rule| (name.clone(), rule)).collect::<Vec<_>>()
    };
    of_kind(text, "Role").flat_map(of).collect()
}

/// Text of a file in deploy/kustomize.
fn kustomized(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kustomize");
    std::fs::read_to_string(Path::new(folder).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

const IMPERSONATOR: &str = "components/certificate-holders/impersonator.yaml";

fn list<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Rules that grant more than the collections that they name.
fn violations(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (role, rule) in rules(text) {
        let (groups, resources) = (list(&rule, "apiGroups"), list(&rule, "resources"));
        let (verbs, urls) = (list(&rule, "verbs"), list(&rule, "nonResourceURLs"));
        // The one place where a pattern is intended: UIDs and every extra.
        let impersonates = verbs == ["impersonate"] && groups == ["authentication.k8s.io"];
        let patterns = [&groups[..], &verbs, &urls, if impersonates { &[] } else { &resources[..] }].concat();
        if patterns.iter().any(|text| text.contains('*')) {
            found.push(format!("{role}: a \"*\" in {rule}"));
        }
        let reads = verbs.iter().any(|verb| ["get", "list", "watch"].contains(verb));
        if reads && resources.iter().any(|name| name.contains('/')) {
            found.push(format!("{role}: a subresource in {rule}"));
        }
    }
    found
}

fn manifests(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            // Chart templates are not YAML; their output is in deploy/kustomize (deploy/manifests.sh).
            if !path.ends_with("chart") {
                manifests(&path, found);
            }
        } else if path.extension().is_some_and(|of| of == "yaml") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).expect("text")));
        }
    }
}

/// Path and text of every YAML file in deploy/.
pub fn deployed() -> Vec<(String, String)> {
    let mut found = Vec::new();
    manifests(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy")), &mut found);
    let rules: usize = found.iter().map(|(_, text)| rules(text).len()).sum();
    assert!(found.len() > 1 && rules > 10, "the roles were not found");
    found
}

#[test]
fn roles_contain_no_wildcards_or_readable_subresources() {
    for (name, text) in deployed() {
        assert_eq!(violations(&text), Vec::<String>::new(), "{name}");
    }
    let role = |groups: &str, resources: &str, verbs: &str| {
        let rule = format!("{{apiGroups: [{groups}], resources: [{resources}], verbs: [{verbs}]}}");
        format!("kind: ClusterRole\nmetadata: {{name: r}}\nrules:\n  - {rule}\n")
    };
    for (groups, resources, verbs) in [
        ("'*'", "'*'", "get, list, watch"),
        ("''", "'*'", "list"),
        ("''", "pods", "'*'"),
        ("'*'", "pods", "list"),
        ("''", "pods/exec", "get"),
        ("''", "nodes/proxy", "get, create"),
        ("''", "'*/log'", "get"),
        ("''", "'*'", "impersonate"),
        ("authentication.k8s.io", "'*'", "impersonate, get"),
    ] {
        assert!(!violations(&role(groups, resources, verbs)).is_empty(), "{groups} {resources} {verbs}");
    }
    assert!(violations(&role("authentication.k8s.io", "'*'", "impersonate")).is_empty());
}

#[test]
fn proxy_roles_exclude_secrets_and_create_only_reviews() {
    let cluster = &["customresourcedefinitions", "apiservices", "clusterrolebindings", "roles"][..];
    for (name, needed) in
        [("central/rbac.yaml", cluster), ("zone/rbac.yaml", cluster), ("node/rbac.yaml", &["pods", "nodes"])]
    {
        let own = rules(&kustomized(name));
        for (role, rule) in &own {
            let (resources, verbs) = (list(rule, "resources"), list(rule, "verbs"));
            assert!(!resources.contains(&"secrets"), "{rule}");
            let reviews = resources.iter().all(|name| name.ends_with("reviews"));
            assert_eq!(verbs, if reviews { &["create"][..] } else { &["list", "watch"] }, "{rule}");
            assert!(!reviews || role.ends_with("-review"), "reads and reviews have separate roles: {role}");
        }
        for needed in needed.iter().chain(&["tokenreviews", "subjectaccessreviews"]) {
            assert!(own.iter().any(|(_, rule)| list(rule, "resources").contains(needed)), "{name}: {needed}");
        }
    }
    let on_nodes = rules(&kustomized("node/rbac.yaml"));
    let sensitive = |rule: &Value| list(rule, "resources").contains(&"configmaps");
    assert!(!on_nodes.iter().any(|(_, rule)| sensitive(rule)), "{on_nodes:?}");
}

/// The holder of the impersonator's token can act as any user, so it has no other permission and is bound only where it
/// is needed.
#[test]
fn impersonator_can_only_impersonate_and_is_bound_in_component() {
    let impersonator = rules(&kustomized(IMPERSONATOR));
    assert!(!impersonator.is_empty());
    assert!(impersonator.iter().all(|(_, rule)| list(rule, "verbs") == ["impersonate"]), "{impersonator:?}");
    for (name, text) in deployed() {
        // An alert names the impersonator's certificate.
        let may_say = name.contains("/components/certificate-holders/") || name.ends_with("/monitoring/rules.yaml");
        let impersonates = rules(&text).iter().any(|(_, rule)| list(rule, "verbs").contains(&"impersonate"));
        assert_eq!(impersonates, name.ends_with(IMPERSONATOR), "{name}");
        let says = |word: &str| text.lines().any(|line| !line.trim_start().starts_with('#') && line.contains(word));
        assert!(!says("impersonator") || may_say, "{name}");
        let is_an_example = name.ends_with("/example/kustomization.yaml");
        assert!(!says("certificate-holders") || is_an_example, "not in any base: {name}");
    }
}

/// Roles are named after their account, and no account has both reading and impersonation.
#[test]
fn each_role_is_bound_to_one_account_of_same_name() {
    let mut bindings = 0;
    for name in ["central/rbac.yaml", "zone/rbac.yaml", "node/rbac.yaml", IMPERSONATOR] {
        for binding in of_kind(&kustomized(name), "Binding") {
            let role = binding["roleRef"]["name"].as_str().expect("a role");
            assert_eq!(binding["subjects"].as_array().map(Vec::len), Some(1), "{binding}");
            let account = binding["subjects"][0]["name"].as_str().expect("an account");
            let apart = role.strip_suffix("-read").or(role.strip_suffix("-review")).unwrap_or(role);
            assert_eq!(account, apart, "{binding}");
            bindings += 1;
        }
    }
    assert_eq!(bindings, 7);
}

/// The memory limit of the container, half of which feeds use by default: src/config/memory.rs.
#[test]
fn sidecar_manifest_sets_memory_limit_probes_and_grace_period() {
    let (_, text) = deployed().into_iter().find(|(name, _)| name.ends_with("sidecar.yaml")).expect("there is one");
    let pod = documents(&text).find(|document| document["kind"] == "Pod").expect("there is a pod");
    let container = &pod["spec"]["initContainers"][0];
    assert_eq!(container["resources"]["limits"]["memory"], "1Gi");
    let health = ["--healthz-bind-address", "0.0.0.0:10256"];
    let metrics = ["--metrics-bind-address", "0.0.0.0:10249"];
    let args = [&["serve", "--listen", "127.0.0.1:8001"][..], &health, &metrics].concat();
    assert_eq!(container["args"], serde_json::json!(args), "no configuration");
    for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/livez")] {
        let probe_request = &container[probe]["httpGet"];
        assert_eq!((&probe_request["path"], &probe_request["port"]), (&path.into(), &"health".into()), "{probe}");
    }
    assert!(container["readinessProbe"].is_null(), "the application is ready while it is served from memory");
    let ports =
        serde_json::json!([{"name": "health", "containerPort": 10256}, {"name": "metrics", "containerPort": 10249}]);
    assert_eq!(container["ports"], ports);
    assert!(container["env"].is_null(), "{container}");
    let nowhere = kube_fanout::upstream::CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("a URL"));
    let drain = kube_fanout::config::ServeSettings::for_upstream(nowhere).drain.as_secs();
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().expect("a time");
    assert!(grace >= drain + 5, "the drain, and then the last records");
}

/// With one node at a time, a rollout in a cluster of 5,000 nodes would take half a day.
#[test]
fn node_proxies_are_replaced_on_a_share_of_the_nodes_at_once() {
    let text = kustomized("node/daemonset.yaml");
    let daemon_set = of_kind(&text, "DaemonSet").next().expect("there is one");
    let expected = serde_json::json!({"maxSurge": "1%", "maxUnavailable": 0});
    assert_eq!(daemon_set["spec"]["updateStrategy"]["rollingUpdate"], expected);
}

/// The image is for Linux, and the `DaemonSet` tolerates all taints, also those of Windows nodes.
#[test]
fn pods_are_scheduled_to_linux_nodes_only() {
    for name in ["central/deployment.yaml", "zone/deployment.yaml", "node/daemonset.yaml"] {
        let workload = documents(&kustomized(name)).next().expect("there is one");
        let selector = &workload["spec"]["template"]["spec"]["nodeSelector"];
        assert_eq!(*selector, serde_json::json!({"kubernetes.io/os": "linux"}), "{name}");
    }
}

/// A policy sees the ports of pods: those of `OpenShift`'s DNS listen on 5353.
#[test]
fn network_policies_permit_every_dns() {
    for name in ["central/network.yaml", "zone/network.yaml", "node/network.yaml"] {
        let policy = documents(&kustomized(name)).next().expect("there is one");
        let rules = policy["spec"]["egress"].as_array().cloned().unwrap_or_default();
        let ports: Vec<_> = rules.iter().filter_map(|rule| rule["ports"].as_array()).flatten().cloned().collect();
        for (port, protocol) in [(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")] {
            let needed = serde_json::json!({"port": port, "protocol": protocol});
            assert!(ports.contains(&needed), "{name}: {port} {protocol}");
        }
    }
}

/// With Helm, which `make chart` builds.
#[test]
fn helm_chart_renders_addresses_files_and_values_of_older_versions() {
    let Some(helm) = std::env::var_os("HELM") else { return };
    let render = |template: &str, values: &[&str]| {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/chart");
        let mut command = std::process::Command::new(&helm);
        command.args(["template", "kube-fanout", chart, "--show-only", template]).args(values);
        let output = command.output().expect("Helm runs");
        let rendered = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(rendered) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    };
    let service = |version: &str| {
        render("templates/service.yaml", &["--set", "form=zone", "--kube-version", version]).expect("it renders")
    };
    assert!(service("1.33.4").contains("trafficDistribution: PreferClose\n"), "{}", service("1.33.4"));
    assert!(service("1.34.0-eks-1").contains("trafficDistribution: PreferSameZone\n"));

    let values = "bindIP=[::],form=node,extraVolumes[0].name=zone,extraVolumes[0].configMap.name=zone,\
                  extraVolumeMounts[0].name=zone,extraVolumeMounts[0].mountPath=/etc/kube-fanout/zone";
    let text = render("templates/daemonset.yaml", &["--set", values]).expect("it renders");
    let daemon_set = documents(&text).find(|document| !document.is_null()).expect("there is one");
    let pod = &daemon_set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let listeners = ["--listen=[::]:8443", "--healthz-bind-address=[::]:10256", "--metrics-bind-address=[::]:10249"];
    assert!(listeners.iter().all(|flag| list(container, "args").contains(flag)), "{container}");
    let last = |list: &Value| list.as_array().and_then(|list| list.last()).cloned();
    assert_eq!(last(&pod["volumes"]), Some(serde_json::json!({"name": "zone", "configMap": {"name": "zone"}})));
    let mount = serde_json::json!({"name": "zone", "mountPath": "/etc/kube-fanout/zone"});
    assert_eq!(last(&container["volumeMounts"]), Some(mount));
    let monitor = ["--set", "serviceMonitor.enabled=true,serviceMonitor.labels.release=prometheus-1"];
    let text = render("templates/metrics.yaml", &monitor).expect("it renders");
    assert!(text.contains("labels: {app.kubernetes.io/name: kube-fanout, release: \"prometheus-1\"}\n"), "{text}");
    let digest = format!("sha256:{}", "0".repeat(64));
    let text = render("templates/deployment.yaml", &["--set", &format!("image.digest={digest}")]).expect("it renders");
    assert!(text.contains(&format!("image: kube-fanout@{digest}\n")), "{text}");
    let refused = render("templates/daemonset.yaml", &["--set", "form=node,bindIP=::"]).expect_err("no brackets");
    assert!(refused.contains("bindIP"), "{refused}");
}

/// A node that starts may have no registry, which can itself depend on this proxy.
#[test]
fn static_pod_starts_without_registry() {
    let (_, text) = deployed().into_iter().find(|(name, _)| name.ends_with("static-pod.yaml")).expect("there is one");
    let pod = documents(&text).next().expect("there is one");
    assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
}

#[test]
fn image_contains_only_daemon_and_release_contains_tools() {
    let builds = |script: &'static str| -> Vec<&str> {
        script.lines().map(str::trim).filter(|line| line.starts_with("static_build \"$")).collect()
    };
    let image = include_str!("../../deploy/image.sh");
    assert_eq!(builds(image), ["static_build \"$target\" --package kube-fanout"]);
    assert_eq!(builds(include_str!("../../deploy/release.sh")), ["static_build \"$1\""]);
    let left_out = "everything is optimized, whatever .cargo/config.toml says for a checkout";
    assert!(include_str!("../../deploy/static.sh").contains("\n    cd /\n"), "{left_out}");
}
