//! `reads.filter` with `delegated.decide: rbac` on a real apiserver: a tenant's lists and watches of Secrets have exactly
//! those that its own single GETs return, for roles with `resourceNames` that a seed draws.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, subject};
use crate::bed::{
    self, Authority, Bed, Http, Plan, Protocol, Proxy, RequestSpec, Seed, eventually, kubectl, log_line, unique,
};

const CONFIG: &str = "\
feeds: {sensitive: [secrets]}
reads: {filter: {groups: [tenants]}}
delegated: {decide: rbac, compareOneIn: 1}
";
const ALL: &str = "/api/v1/secrets";
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const ROUNDS: usize = 15;

/// A tenant whose role in each namespace, and whose cluster role, a test changes.
struct Scene {
    bed: Bed,
    proxy: Proxy,
    direct: Http,
    /// The tenant's clients of the apiserver and of the proxy.
    own: Http,
    through: Http,
    user: String,
    cluster_role: String,
    namespaces: Vec<String>,
}

type Objects = BTreeMap<String, Value>;

impl Scene {
    async fn new() -> Option<Self> {
        let bed = bed::shared().await?;
        let direct = bed.direct();
        let (user, cluster_role) = (unique("tenant"), unique("secrets"));
        let subject = subject("User", &user);
        let role = json!({"metadata": {"name": cluster_role}, "rules": []});
        direct.create(&collection(None, "roles"), role).await;
        let bound = binding(&cluster_role, "ClusterRole", &cluster_role, &subject);
        direct.create(&collection(None, "rolebindings"), bound).await;
        let mut namespaces = Vec::new();
        for _ in 0..3 {
            let namespace = bed.namespace("named").await;
            for name in NAMES {
                let secret = json!({"metadata": {"name": name}, "stringData": {"in": namespace}});
                direct.create(&secrets(&namespace), secret).await;
            }
            let role = json!({"metadata": {"name": "named"}, "rules": []});
            direct.create(&collection(Some(&namespace), "roles"), role).await;
            let bound = binding("named", "Role", "named", &subject);
            direct.create(&collection(Some(&namespace), "rolebindings"), bound).await;
            namespaces.push(namespace);
        }
        let proxy = Plan::delegated(&bed).config(CONFIG).start(&bed).await;
        let caller = Authority::of(&bed).issue(&user, &["tenants"]);
        let own = Http::new(bed.target().by(&caller), Protocol::H2);
        let through = proxy.client_of(&caller);
        Some(Self { bed, proxy, direct, own, through, user, cluster_role, namespaces })
    }

    /// Changes a role of the tenant.
    async fn change_role(&self, random: &mut Rng) {
        let rules: Vec<_> = (0..random.usize(..3)).map(|_| drawn_rule(random)).collect();
        let (at, name) = match random.usize(..=self.namespaces.len()) {
            0 => (collection(None, "roles"), self.cluster_role.as_str()),
            at => (collection(Some(&self.namespaces[at - 1]), "roles"), "named"),
        };
        self.direct.patch(&format!("{at}/{name}"), json!({"rules": rules})).await;
    }

    /// The Secrets that the apiserver returns for single GETs of the tenant.
    async fn gets(&self, namespace: &str) -> Objects {
        let mut found = Objects::new();
        for name in NAMES {
            let answer = self.own.get(&format!("{}/{name}", secrets(namespace))).await;
            if answer.status == 200 {
                found.insert(format!("{namespace}/{name}"), bare(answer.value()));
            }
        }
        found
    }

    async fn all_gets(&self) -> Objects {
        let mut all = Objects::new();
        for namespace in &self.namespaces {
            all.extend(self.gets(namespace).await);
        }
        all
    }

    /// The objects of a list in the namespaces of the test. The cluster role counts in others too.
    fn objects(&self, list: &Value) -> Objects {
        let items = list["items"].as_array().expect("items").iter().filter(|item| self.has(item));
        items.map(|item| (key(item), bare(item.clone()))).collect()
    }

    fn has(&self, object: &Value) -> bool {
        self.namespaces.iter().any(|namespace| object["metadata"]["namespace"] == **namespace)
    }

    /// Whether the tenant's list has these objects, or is denied because there are none.
    async fn lists(&self, path: &str, expected: &Objects) -> bool {
        let answer = self.through.list_now(RequestSpec::get(path)).await;
        match answer.status.as_u16() {
            403 => path != ALL && expected.is_empty(),
            200 => self.objects(&answer.value()) == *expected,
            status => panic!("{status}: {}", answer.text()),
        }
    }
}

fn secrets(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets")
}

fn drawn_rule(random: &mut Rng) -> Value {
    let mut one = |of: &[&'static [&'static str]]| of[random.usize(..of.len())].to_vec();
    let verbs = one(&[&["get"], &["get", "watch"], &["*"], &["list", "watch"], &["update"]]);
    let groups = one(&[&[""], &[""], &["*"], &["apps"]]);
    let resources = one(&[&["secrets"], &["secrets"], &["*"], &["configmaps"], &["secrets/status"]]);
    let names: Vec<_> = NAMES.iter().chain(&["none"]).filter(|_| random.u8(..3) == 0).collect();
    // A rule without names allows to list all.
    let names = if names.is_empty() { vec![&"none"] } else { names };
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names})
}

/// An object without the kind that items of a list do not have.
fn bare(mut object: Value) -> Value {
    object.as_object_mut().map(|object| (object.remove("kind"), object.remove("apiVersion")));
    object
}

fn key(object: &Value) -> String {
    let of = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", of("namespace"), of("name"))
}

#[tokio::test]
async fn filtered_secrets_equal_single_gets_of_roles_with_names() {
    let Some(scene) = Scene::new().await else { return };
    let seed = Seed::new("NAMED_OBJECTS_SEED", |seed| format!("NAMED_OBJECTS_SEED={seed} cargo test -- named_objects"));
    let mut random = Rng::with_seed(seed.first());
    let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = scene.through.watch(RequestSpec::get(&format!("{ALL}?{options}"))).await;
    let (mut store, mut shown) = (Objects::new(), 0);
    for round in 0..ROUNDS {
        scene.change_role(&mut random).await;
        if random.bool() {
            let (namespace, name) = (&scene.namespaces[random.usize(..3)], NAMES[random.usize(..NAMES.len())]);
            let change = json!({"stringData": {"in": round.to_string()}});
            scene.direct.patch(&format!("{}/{name}", secrets(namespace)), change).await;
        }
        // The apiserver and the proxy receive the rules by watches.
        let what = format!("round {round}: lists equal single GETs");
        let expected = eventually(&what, async || {
            let expected = scene.all_gets().await;
            if !scene.lists(ALL, &expected).await {
                return None;
            }
            for namespace in &scene.namespaces {
                let prefix = format!("{namespace}/");
                let part = expected.iter().filter(|(key, _)| key.starts_with(&prefix));
                let part = part.map(|(key, object)| (key.clone(), object.clone())).collect();
                if !scene.lists(&secrets(namespace), &part).await {
                    return None;
                }
            }
            (scene.all_gets().await == expected).then_some(expected)
        })
        .await;
        shown += expected.len();
        while store != expected {
            let event = watch.event().await.unwrap_or_else(|| panic!("round {round}: the watch ended"));
            let key = key(&event.object);
            match event.kind.as_str() {
                "ADDED" | "MODIFIED" | "DELETED" if !scene.has(&event.object) => {}
                "ADDED" | "MODIFIED" => drop(store.insert(key, bare(event.object.clone()))),
                "DELETED" => assert!(store.remove(&key).is_some(), "{key} is deleted, but was never added"),
                "BOOKMARK" => {}
                _ => panic!("{}", event.line),
            }
        }
    }
    assert!(shown > 0);
    log_line(&format!("{ROUNDS} rounds, {shown} objects shown by name"));
}

#[tokio::test]
async fn kubectl_prints_secrets_that_roles_name() {
    let Some(scene) = Scene::new().await else { return };
    let namespace = &scene.namespaces[0];
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["b", "d"]});
    scene.direct.patch(&format!("{}/named", collection(Some(namespace), "roles")), json!({"rules": [rule]})).await;
    let expected = [format!("{namespace}/b"), format!("{namespace}/d")];
    eventually("the rules are known", async || {
        let answer = scene.through.list_now(RequestSpec::get(&secrets(namespace))).await;
        (answer.status == 200 && scene.objects(&answer.value()).keys().eq(&expected)).then_some(())
    })
    .await;
    let tenant = Authority::of(&scene.bed).issue(&scene.user, &["tenants"]).certificate.expect("a certificate");
    for args in [vec!["get", "secrets", "-n", namespace], vec!["get", "secrets", "-A"]] {
        let mut command = kubectl(&scene.bed, &scene.proxy.target(), &args);
        command.arg("--client-certificate").arg(&tenant).arg("--client-key").arg(&tenant);
        let output = tokio::task::spawn_blocking(move || command.output().expect("kubectl runs")).await;
        let output = output.expect("no panic");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rows: Vec<_> = text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>()).collect();
        let names: Vec<_> = rows.iter().map(|row| row[usize::from(args.contains(&"-A"))]).collect();
        assert_eq!((names, output.status.code()), (vec!["b", "d"], Some(0)), "{text}");
    }
}
