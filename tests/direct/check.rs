//! `kube-fanout check`, which runs before a proxy is deployed (docs/INSTALL.md, "Before you install").

use std::path::Path;

use serde_json::{Value, json};

use crate::direct::{Dir, pair};
use crate::process::{Output, kubeconfig, run};

async fn checked(kubeconfig: &Path, more: &[&str]) -> Output {
    let file = kubeconfig.display().to_string();
    let arguments: Vec<_> =
        ["check", "--kubeconfig", &file].into_iter().chain(more.iter().copied()).map(str::to_owned).collect();
    let running = tokio::task::spawn_blocking(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    running.await.expect("no panic")
}

const CENTRAL: [&str; 5] = ["--auth", "delegated", "--preload", "pods,configmaps", "--tls-self-signed"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_missing_permission_with_rbac_rule() {
    let up = demo::upstream().pods(42).run().await;
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let all = checked(&file, &[&CENTRAL[..], &["--nodes", "1000"]].concat()).await;
    assert_eq!(all.code, Some(0), "{}{}", all.stdout, all.stderr);
    for part in [
        "upstream: kube-apiserver 1.",
        "authenticated as demo",
        "rights: all ",
        "sizes: pods: 42 objects",
        "cost: 1000 proxies × up to 20 watches = 20000 upstream watches",
        "all checks passed",
    ] {
        assert!(all.stdout.contains(part), "{part}: {}", all.stdout);
    }

    up.reviews().lack("watch", "clusterroles");
    let late = checked(&file, &CENTRAL).await;
    assert_eq!(late.code, Some(0), "it works without: {}", late.stdout);
    assert!(
        late.stdout.contains("note   rights: the proxy may not watch clusterroles.rbac.authorization.k8s.io"),
        "{}",
        late.stdout
    );
    assert_eq!(checked(&file, &[&CENTRAL[..], &["--strict"]].concat()).await.code, Some(1));

    up.reviews().lack("watch", "configmaps");
    up.reviews().lack("create", "tokenreviews");
    let missing = checked(&file, &[&CENTRAL[..], &["--json"]].concat()).await;
    assert_eq!(missing.code, Some(1), "{}", missing.stdout);
    let json: Value = serde_json::from_str(&missing.stdout).expect("JSON");
    let failed = json["findings"].as_array().into_iter().flatten().filter(|finding| finding["outcome"] == "failed");
    let remedies: Vec<_> = failed.map(|finding| finding["remedy"].as_str().unwrap_or_default().to_owned()).collect();
    let rule = |group: &str, resource: &str, verb: &str| {
        format!("add the ClusterRole rule {{apiGroups: [\"{group}\"], resources: [{resource}], verbs: [{verb}]}}")
    };
    assert_eq!(
        remedies,
        [rule("", "configmaps", "watch"), rule("authentication.k8s.io", "tokenreviews", "create")],
        "{json}"
    );
}

/// `preload` limits nothing; `feeds.resources` does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_covers_resources_that_are_cached_on_demand() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().lack("list", "deployments");
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let all = checked(&file, &["--preload", "pods"]).await;
    for part in ["cannot be read and are forwarded: deployments.apps", "sizes: pods: 3 objects", "sizes: configmaps: "]
    {
        assert!(all.code == Some(0) && all.stdout.contains(part), "{part}: {}", all.stdout);
    }
    let config = dir.file("config.yaml", "feeds: {resources: [pods]}\n").display().to_string();
    let named = checked(&file, &["--preload", "pods", "--config", &config]).await;
    for part in ["deployments", "sizes: configmaps"] {
        assert!(named.code == Some(0) && !named.stdout.contains(part), "{part}: {}", named.stdout);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_missing_permissions_for_local_identification_and_impersonation() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let text = format!("delegated: {{identify: local, impersonator: {}}}\n", file.display());
    let config = dir.file("config.yaml", &text).display().to_string();
    let check = async || checked(&file, &[&CENTRAL[..], &["--config", &config]].concat()).await;
    let all = check().await;
    assert!(all.code == Some(0) && all.stdout.contains("all checks passed"), "{}{}", all.stdout, all.stderr);

    up.reviews().lack("watch", "nodes");
    up.reviews().lack("get", "/openid/v1/jwks");
    let reviewed = check().await;
    for part in [
        "note   rights: the proxy may not watch nodes: the apiserver reviews tokens",
        "note   rights: the proxy may not get /openid/v1/jwks: the apiserver reviews tokens",
        "fix: add the ClusterRole rule {nonResourceURLs: [/openid/v1/jwks], verbs: [get]}",
    ] {
        assert!(reviewed.code == Some(0) && reviewed.stdout.contains(part), "{part}: {}", reviewed.stdout);
    }

    up.reviews().lack("impersonate", "groups");
    let refused = check().await;
    for part in [
        "FAILED rights: the proxy may not impersonate groups with delegated.impersonator",
        "fix: add the ClusterRole rule {apiGroups: [\"\"], resources: [groups], verbs: [impersonate]}",
    ] {
        assert!(refused.code == Some(1) && refused.stdout.contains(part), "{part}: {}", refused.stdout);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_exits_with_2_if_upstream_is_down_and_1_on_problems() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let config = dir.file("config.yaml", "limits:\n  watches: 0\n").display().to_string();
    let wrong = checked(&file, &["--config", &config]).await;
    assert_eq!(wrong.code, Some(1), "{}", wrong.stderr);
    assert!(wrong.stdout.contains("FAILED configuration: limits.watches: 0 is out of range"), "{}", wrong.stdout);

    let none = checked(&file, &["--preload", "unicorns"]).await;
    assert!(
        none.code == Some(1) && none.stdout.contains("unicorns: upstream serves no such resource"),
        "{}",
        none.stdout
    );

    // A certificate with the key of another one.
    let (certificate, key) =
        (dir.file("tls.crt", &pair().cert.pem()), dir.file("tls.key", &pair().signing_key.serialize_pem()));
    let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
    let mixed = checked(&file, &["--preload", "pods", "--tls-cert", &certificate, "--tls-key", &key]).await;
    assert!(mixed.code == Some(1) && mixed.stdout.contains("FAILED certificates: tls: "), "{}", mixed.stdout);

    up.faults().down().await;
    let void = checked(&file, &["--preload", "pods"]).await;
    assert_eq!(void.code, Some(2), "{}{}", void.stdout, void.stderr);
    let address = up.url().trim_start_matches("http://").to_owned();
    let why = format!("cannot connect to {address}: tcp connect error: Connection refused");
    assert!(void.stdout.contains("?      upstream: ") && void.stdout.contains(&why), "{}", void.stdout);
    assert!(void.stdout.contains("ok     configuration: ") && void.stdout.contains("inconclusive"), "{}", void.stdout);
}

/// The report names the missing role binding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_fails_without_any_permission() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().lack("*", "*");
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let none = checked(&file, &[]).await;
    assert_eq!(none.code, Some(1), "{}{}", none.stdout, none.stderr);
    for part in ["FAILED rights: none of ", "FAILED rights: nothing can be listed and watched"] {
        assert!(none.stdout.contains(part), "{part}: {}", none.stdout);
    }
    assert!(!none.stdout.contains("all checks passed"), "{}", none.stdout);
}

/// One refusal does not hide other problems.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_other_problems_after_upstream_error() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().refuse(Some(500));
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let found = checked(&file, &["--preload", "pods,unicorns"]).await;
    assert_eq!(found.code, Some(1), "{}{}", found.stdout, found.stderr);
    for part in [
        "?      upstream: cannot determine the proxy's user: ",
        "FAILED configuration: preload: unicorns: upstream serves no such resource",
        "rights: cannot check ",
        "sizes: pods: 3 objects",
    ] {
        assert!(found.stdout.contains(part), "{part}: {}", found.stdout);
    }
}

/// The apiserver answers an expired certificate with 401 only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_expired_client_certificate() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(vec!["proxy".to_owned()]).expect("parameters");
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 2, 3);
    let certificate = parameters.self_signed(&key).expect("a certificate");
    let certificate = dir.file("client.crt", &certificate.pem()).display().to_string();
    let key = dir.file("client.key", &key.serialize_pem()).display().to_string();
    let text = std::fs::read_to_string(kubeconfig(&dir, &up.url(), "")).expect("a kubeconfig");
    let user = format!("user: {{client-certificate: {certificate}, client-key: {key}}}");
    let file = dir.file("expired", &text.replace("user: {}", &user));
    let expired = checked(&file, &["--preload", "pods"]).await;
    assert_eq!(expired.code, Some(1), "{}{}", expired.stdout, expired.stderr);
    let why = "FAILED certificates: upstream.kubeconfig: the client certificate expired on Feb  3 ";
    assert!(expired.stdout.contains(why), "{}", expired.stdout);
}

/// An authorizer before RBAC is found by accesses that RBAC allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_authorizer_that_denies_what_rbac_allows() {
    let up = demo::upstream().pods(3).run().await;
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    up.put("clusterroles", json!({"metadata": {"name": "r"}, "rules": [rule]}));
    for number in 0..100 {
        let subjects = [json!({"kind": "User", "name": "ada"})];
        let role = json!({"kind": "ClusterRole", "name": "r"});
        let name = format!("b-{number}");
        up.put("clusterrolebindings", json!({"metadata": {"name": name}, "subjects": subjects, "roleRef": role}));
    }
    let dir = Dir::new();
    let file = kubeconfig(&dir, &up.url(), "");
    let decide = |decider: &str| dir.file(decider, &format!("delegated: {{decide: {decider}}}")).display().to_string();
    let check = async |decider: &str| checked(&file, &[&CENTRAL[..], &["--config", &decide(decider)]].concat()).await;
    let shows = |output: &Output, code: i32, line: &str| {
        assert!(output.code == Some(code) && output.stdout.contains(line), "{}{}", output.stdout, output.stderr);
    };
    up.reviews().allow("ada", "*");
    up.reviews().because("RBAC: allowed by ClusterRoleBinding \"b-1\" of ClusterRole \"r\" to User \"ada\"");
    let before = up.reviews().counts().accesses;
    shows(&check("rbac").await, 0, "ok     authorizers: RBAC decided 20 of 20 accesses that it allows; 7 others");
    assert_eq!(up.reviews().counts().accesses - before, 20, "a sample of the bindings");

    up.reviews().because("");
    let other = "authorizers: an authorizer before RBAC allows with the reason \"\" what RBAC allows (RBAC: allowed by";
    shows(&check("rbac").await, 0, &format!("note   {other}"));
    shows(&check("ask").await, 0, &format!("ok     {other}"));

    up.reviews().deny_because("a webhook says no");
    up.reviews().deny("ada", "*");
    let denied = check("rbac").await;
    let forbidden = "User \"ada\" cannot get resource \"pods\" in API group \"\" at the cluster scope";
    let reasons = format!("{forbidden}: a webhook says no (RBAC: allowed by ClusterRoleBinding");
    shows(&denied, 1, &format!("FAILED authorizers: the apiserver denies what RBAC allows: {reasons}"));
    shows(&check("ask").await, 0, "fix: keep delegated.decide: ask");
    // Reviews of others are forbidden. The proxy's own account has no rule that could be compared.
    up.reviews().refuse(Some(403));
    let nothing = check("rbac").await;
    assert!(nothing.stdout.contains("?      authorizers: RBAC decided 0 of 0"), "{}", nothing.stdout);
}
