//! Tables of custom resources, printed by the proxy and by the apiserver: drawn definitions and objects, and the
//! requests of kubectl and k9s.

use fastrand::Rng;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{
    self, Authority, Lent, Pair, Plan, RequestSpec, Seed, eventually, log_line, number, unique, version_of,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The Accept header of kubectl and k9s.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                     application/json";
const TYPES: [&str; 5] = ["string", "integer", "number", "boolean", "date"];
/// The parts of a path after `.spec`.
const PATHS: [&str; 22] = [
    "",
    ".a",
    ".b",
    ".a.b",
    ".a[0]",
    ".a[-1]",
    ".a[*].b",
    ".a[1:]",
    ".a[0:2:2]",
    ".a[5]",
    ".b[:1].a",
    ".x\\.y/z",
    "['x\\.y/z']",
    ".missing.deep",
    ".conditions[?(@.type==\"Ready\")].status",
    ".conditions[?(@.type!='Ready')].status",
    ".conditions[?(@.status==true)].type",
    ".conditions[?(@.reason)].type",
    ".conditions[?(@.type[3])].type",
    ".conditions[?(@.type == \"Ready\")].since",
    ".conditions[*].since",
    ".conditions",
];
/// Paths that the proxy leaves to the apiserver, for different reasons, and that always select the same.
const LEFT: [&str; 6] =
    ["..only", ".one.*", ".a[0,1]", "}{.b", ".conditions[?(@.count>1)].type", ".conditions[?(@.type==\"a\" && @.b)].c"];
/// The number of objects of each kind.
const OBJECTS: usize = 6;

/// Returns a scalar, as users and schemas allow them.
fn scalar(random: &mut Rng) -> Value {
    let scalars = [
        json!("text <b>&\"\\\u{2028}é"),
        json!(""),
        json!("null"),
        json!("12s"),
        json!("2020-02-03T04:05:06Z"),
        json!("2001-02-03T04:05:06.789+05:30"),
        json!("0001-01-01T00:00:00Z"),
        json!("1500-01-01T00:00:00Z"),
        json!("2999-01-01T00:00:00Z"),
        json!(7),
        json!(-7),
        json!(i64::MAX),
        json!(1.5),
        json!(-0.25),
        json!(1.25e15),
        json!(1.25e-7),
        json!(123_456_789.5),
        json!(true),
        json!(false),
        Value::Null,
    ];
    scalars[random.usize(..scalars.len())].clone()
}

fn value(random: &mut Rng, depth: u32) -> Value {
    match random.u8(..if depth == 0 { 1 } else { 4 }) {
        0 => scalar(random),
        1 => (0..random.usize(..4)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let keys = ["a", "b", "x.y/z"].into_iter().filter(|_| random.bool()).collect::<Vec<_>>();
            keys.into_iter().map(|key| (key.to_owned(), value(random, depth - 1))).collect::<Map<_, _>>().into()
        }
    }
}

fn condition(random: &mut Rng) -> Value {
    let kind = ["Ready", "Other"][random.usize(..2)];
    let mut condition = json!({"type": kind, "status": scalar(random), "since": scalar(random), "count": 1});
    if random.bool() {
        condition["reason"] = scalar(random);
    }
    condition
}

fn spec(random: &mut Rng) -> Value {
    let mut spec = json!({"a": value(random, 2), "b": value(random, 2), "one": {"b": scalar(random)}});
    if random.bool() {
        spec["x.y/z"] = scalar(random);
    }
    if random.u8(..4) > 0 {
        spec["conditions"] = (0..random.usize(..4)).map(|_| condition(random)).collect();
    }
    spec
}

/// Returns the columns of a definition. The first has none, and every sixth has one that is left to the apiserver.
fn columns(random: &mut Rng, index: usize) -> Vec<Value> {
    let count = if index == 0 { 0 } else { random.usize(1..10) };
    let mut columns = Vec::new();
    for at in 0..count {
        let path = match PATHS[random.usize(..PATHS.len())] {
            "" if random.bool() => ".metadata.creationTimestamp".to_owned(),
            "" => ".metadata.labels.app".to_owned(),
            path => format!(".spec{path}"),
        };
        let kind = TYPES[random.usize(..TYPES.len())];
        let mut column =
            json!({"name": format!("C{at}<"), "type": kind, "jsonPath": path, "priority": random.i32(0..3)});
        if random.bool() {
            column["description"] = json!("what <it> is");
            column["format"] = json!("int32");
        }
        columns.push(column);
    }
    if is_left(index) {
        let path = format!(".spec{}", LEFT[index / 6 % LEFT.len()]);
        columns.push(json!({"name": "Left", "type": "string", "jsonPath": path}));
    }
    columns
}

fn is_left(index: usize) -> bool {
    index % 6 == 5
}

/// A definition of namespaced objects with any members, and with these columns.
fn definition(group: &str, kind: &str, columns: &[Value]) -> Value {
    let preserving = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": preserving},
        "additionalPrinterColumns": columns});
    let singular = kind.to_lowercase();
    let plural = singular.replacen("kind", "kinds", 1);
    let names = json!({"plural": plural, "singular": singular, "kind": kind});
    json!({"metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version], "names": names}})
}

/// Creates the definition with this index and its objects. Returns the path of the collection and the last version.
async fn define(pair: &Pair<Lent>, group: &str, index: usize, random: &mut Rng) -> (String, u64) {
    let (plural, kind) = (format!("kinds{index}"), format!("Kind{index}"));
    pair.direct.create(DEFINITIONS, definition(group, &kind, &columns(random, index))).await;
    let path = format!("/apis/{group}/v1/namespaces/{}/{plural}", pair.namespace);
    pair.direct.until_ok("it is served", RequestSpec::get(&path)).await;
    let mut version = 0;
    for object in 0..OBJECTS {
        let metadata = json!({"name": format!("o{object}"), "labels": {"app": format!("a{}", object % 2)}});
        let manifest = json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata,
            "spec": spec(random)});
        version = version_of(&pair.direct.create(&path, manifest).await);
    }
    (path, version)
}

/// Sends the requests of kubectl and k9s for one kind to both. Returns the paths that the proxy answered from its cache,
/// and those that it forwarded because only the apiserver can print the Table.
async fn compare(pair: &Pair<Lent>, (path, version): &(String, u64), is_left: bool) -> [Vec<String>; 2] {
    let everywhere = path.replacen(&format!("/namespaces/{}", pair.namespace), "", 1);
    let mut paths: Vec<String> = [
        "?limit=500",
        "",
        "?resourceVersion=0",
        "?labelSelector=app%3Da1&limit=500",
        "?fieldSelector=metadata.name%3Do2",
        "?labelSelector=none",
        "?limit=2",
        "?limit=2&labelSelector=app%3Da1",
        "?includeObject=None",
        "?includeObject=Object&limit=500",
        "?includeObject=Metadata",
        "?includeObject=Nothing",
        "/o1?resourceVersion=0",
        "/o1?resourceVersion=0&includeObject=Object",
        "/o1?resourceVersion=0&includeObject=None",
        "/missing?resourceVersion=0",
        "/o1",
    ]
    .map(|query| format!("{path}{query}"))
    .into();
    paths.push(format!("{everywhere}?limit=500"));
    paths.push(format!("{path}?resourceVersion={version}"));
    paths.push(format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact"));
    let mut outcomes = [Vec::new(), Vec::new()];
    for path in paths {
        // A controller may still update a definition, after which the apiserver prints for some seconds.
        let may_be_left = is_left || path.ends_with("includeObject=Nothing");
        let answer = eventually(&format!("{path} is printed"), async || {
            let answer = pair.same(RequestSpec::get(&path).accept(TABLE)).await;
            (may_be_left || answer.header("kube-fanout-reason") != "table").then_some(answer)
        })
        .await;
        if let Some(token) = answer.value()["metadata"]["continue"].as_str().filter(|_| path.ends_with("?limit=2")) {
            pair.same(RequestSpec::get(&format!("{path}&continue={token}")).accept(TABLE)).await;
        }
        match answer.header("kube-fanout-reason") {
            "" => outcomes[0].push(path),
            "table" => outcomes[1].push(path),
            // A proof may be late on a busy machine.
            _ => {}
        }
    }
    outcomes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printed_tables_of_custom_resources_match_the_apiserver() {
    let Some(bed) = bed::alone().await else { return };
    let kinds = usize::try_from(number("PRINTED_KINDS", 7)).expect("a number of kinds");
    let seed = Seed::new("PRINTED_SEED", |seed| format!("make printed SEED={seed} KINDS={kinds}"));
    let pair = Pair::with(Plan::tls(), bed).await;
    let (mut random, group) = (Rng::with_seed(seed.first()), unique("printed") + ".example.com");
    let mut collections = Vec::new();
    for index in 0..kinds {
        collections.push(define(&pair, &group, index, &mut random).await);
    }
    // Tables are printed once no definition has changed for some seconds.
    for (index, (path, version)) in collections.iter().enumerate().filter(|(index, _)| !is_left(*index)) {
        eventually(&format!("kind {index} is printed"), async || {
            let at = RequestSpec::get(&format!("{path}?resourceVersion={version}")).accept(TABLE);
            pair.through.fetch(at).await.is_cached().then_some(())
        })
        .await;
    }
    let outcomes = collections.iter().enumerate().map(|(index, kind)| compare(&pair, kind, is_left(index)));
    let outcomes = join_all(outcomes).await;
    let mut printed = 0;
    for (index, [cached, left]) in outcomes.iter().enumerate() {
        if is_left(index) {
            assert!(cached.is_empty(), "kind {index}: {cached:?}");
        } else {
            assert!(!cached.is_empty(), "kind {index}: {left:?}");
            printed += cached.len();
        }
    }
    let left: usize = outcomes.iter().map(|[_, left]| left.len()).sum();
    log_line(&format!(
        "{kinds} kinds: {printed} Tables printed, {left} left to the apiserver, all equal to direct ones"
    ));
    columns_follow_the_definition(&pair, &group, &collections[0].0).await;
}

/// Changes the columns of the first kind. The proxy prints the new ones, after a time in which the apiserver prints.
async fn columns_follow_the_definition(pair: &Pair<Lent>, group: &str, path: &str) {
    let table = || RequestSpec::get(path).accept(TABLE);
    let definition = format!("{DEFINITIONS}/kinds0.{group}");
    let mut versions = pair.direct.json(&definition).await["spec"]["versions"].clone();
    versions[0]["additionalPrinterColumns"] = json!([{"name": "Hue", "type": "string", "jsonPath": ".spec.a"}]);
    pair.direct.patch(&definition, json!({"spec": {"versions": versions}})).await;
    eventually("the proxy prints the new columns", async || {
        let answer = pair.through.fetch(table()).await;
        (answer.is_cached() && answer.text().contains("\"Hue\"")).then_some(())
    })
    .await;
    assert!(pair.same(table()).await.text().contains("\"Hue\""));
}

/// An object of one namespace ends printing for a minute. Upstream would deny the collection to a caller who may read
/// only another namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprintable_object_does_not_hide_other_namespaces_from_filtered_callers() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).config("reads: {filter: {groups: [readers]}}").start(&bed).await;
    let (direct, user, group) = (bed.direct(), unique("reader"), unique("dates") + ".example.com");
    let column = json!({"name": "At", "type": "date", "jsonPath": ".spec.at"});
    direct.create(DEFINITIONS, definition(&group, "Kind", &[column])).await;
    let [own, other] = [bed.namespace("dates").await, bed.namespace("dates").await];
    let path = |namespace: &str| format!("/apis/{group}/v1/namespaces/{namespace}/kinds");
    direct.until_ok("it is served", RequestSpec::get(&path(&own))).await;
    for (namespace, at) in [(&own, "2023-11-30T22:13:18Z"), (&other, "2023-11-31T22:13:18Z")] {
        let manifest = json!({"apiVersion": format!("{group}/v1"), "kind": "Kind", "metadata": {"name": namespace},
            "spec": {"at": at}});
        direct.create(&path(namespace), manifest).await;
    }
    let rules = json!([{"apiGroups": [group], "resources": ["kinds"], "verbs": ["list", "watch"]}]);
    direct.create(&collection(None, "roles"), json!({"metadata": {"name": user}, "rules": rules})).await;
    let bound = binding("dates", "ClusterRole", &user, &subject("User", &user));
    direct.create(&collection(Some(&own), "rolebindings"), bound).await;
    let attributes = json!({"namespace": own, "verb": "list", "group": group, "resource": "kinds"});
    may(&direct, json!({"user": user, "resourceAttributes": attributes})).await;
    let authority = Authority::of(&bed);
    let admin = proxy.client_of(&authority.issue(&unique("admin"), &["system:masters"]));
    let reader = proxy.client_of(&authority.issue(&user, &["readers"]));
    let everywhere = || RequestSpec::get(&format!("/apis/{group}/v1/kinds?limit=500")).accept(TABLE);
    eventually("printing is tried", async || {
        let answer = admin.fetch(everywhere()).await;
        assert_eq!(answer.value()["rows"].as_array().map(Vec::len), Some(2), "{}", answer.text());
        (answer.header("kube-fanout-reason") == "not_derivable").then_some(())
    })
    .await;
    let answer = reader.fetch(everywhere()).await;
    assert_eq!(answer.header("kube-fanout-filtered"), "true", "{}", answer.text());
    let names = answer.value()["rows"].as_array().into_iter().flatten().map(|row| row["cells"][0].clone()).collect();
    assert_eq!(Value::Array(names), json!([own]));
}
