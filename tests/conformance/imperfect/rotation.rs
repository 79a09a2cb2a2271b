//! Certificates, authorities and tokens are replaced on a real apiserver while watches are open (O6).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::balancer::Balancer;
use crate::bed::{
    self, Account, Authority, Http, Plan, Plane, Protocol, Proxy, RequestSpec, Sibling, Target, Watch, eventually,
    log_line, rbac, version_of, write_bundle, write_kubeconfig,
};

/// The identity as the apiserver sees it: the user and the id of the token.
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const HOUR: i64 = 3600;

/// The files that are replaced.
struct Files {
    dir: PathBuf,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Replaces a file atomically, as in mounted Secrets.
    fn write(&self, name: &str, text: &str) {
        write_bundle(&self.path(name), &[text.to_owned()]);
    }

    /// Writes a certificate of the control plane's own authority for this user, with all permissions.
    fn certify(&self, plane: &Plane, user: &str) {
        let issued = Authority::of(plane).issue(user, &["system:masters"]).certificate.expect("it has one");
        let text = fs::read_to_string(issued).expect("a file");
        let key = text.find("-----BEGIN PRIVATE KEY").expect("the key is written after the certificate");
        self.write("client.crt", &text[..key]);
        self.write("client.key", &text[key..]);
    }

    /// Writes a token of the account with its own id.
    fn token(&self, plane: &Plane, account: &Account, name: &str) {
        let mut claims = Plane::claims(account, HOUR);
        claims["jti"] = json!(name);
        self.write("token", &plane.sign(&claims).token);
    }
}

/// A proxy, one of its watches, and its upstream identity.
struct Watched {
    proxy: Proxy,
    watch: Watch,
    path: String,
}

impl Watched {
    async fn new(plane: &Plane, proxy: Proxy) -> Self {
        let path = format!("/api/v1/namespaces/{}/configmaps", plane.namespace("rotation").await);
        let at = proxy.client().version(&path).await;
        let watch = proxy.client().watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={at}"))).await;
        Self { proxy, watch, path }
    }

    /// The proxy's identity as the apiserver reports it.
    async fn who(&self) -> Value {
        let kind = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let request = RequestSpec::get(WHO).with(http::Method::POST, "application/json", kind.to_string());
        let answer = self.proxy.client().fetch(request).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.value()["status"]["userInfo"].take()
    }

    /// Checks that the open watch receives a change, and that a consistent list contains it.
    async fn goes_on(&mut self, direct: &Http, name: &str) {
        let made = version_of(&direct.create(&self.path, json!({"metadata": {"name": name}})).await);
        let event = self.watch.change().await;
        assert_eq!((event.name(), event.version()), (name, made), "once and in order");
        assert!(version_of(&self.proxy.client().json(&self.path).await) >= made);
    }
}

/// Waits until the server presents a certificate of this authority.
async fn shows(sibling: &Sibling, authority: &Path) {
    let target = Target { ca: Some(authority.to_owned()), ..sibling.target() };
    eventually("the apiserver shows its new certificate", async || {
        Http::new(target.clone(), Protocol::H1).try_get("/readyz").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_credentials_take_effect_without_ending_watches() {
    let Some(bed) = bed::shared().await else { return };
    let etcd_port = bed.etcd_url().rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
    let sibling = Sibling::start(&bed, etcd_port).await;
    let balancer = Balancer::start(&bed, &[sibling.target()]).await;
    let files = Files { dir: bed.file("rotation") };
    fs::create_dir_all(&files.dir).expect("a directory");
    let direct = bed.direct();
    let account = Account::create(&direct, "default", &bed::unique("rotated")).await;
    let binding = rbac::binding(&account.name, "ClusterRole", "cluster-admin", &rbac::subject("User", &account.user()));
    direct.create(&rbac::collection(None, "rolebindings"), binding).await;
    let all = json!({"verb": "*", "group": "*", "resource": "*"});
    rbac::may(&sibling.direct(), json!({"user": account.user(), "resourceAttributes": all})).await;
    let (old, new) = (fs::read_to_string(bed.ca()).expect("a file"), files.path("new.pem"));
    files.write("authorities.pem", &old);
    files.certify(&bed, "rotated-1");
    files.token(&bed, &account, "first");
    let by_certificate = json!({"client-certificate": "client.crt", "client-key": "client.key"});
    let users = [("by-certificate", by_certificate), ("by-token", json!({"tokenFile": files.path("token")}))];
    let mut watched = Vec::new();
    for (name, user) in &users {
        let kubeconfig = files.path(name);
        let both = balancer.target(&bed.user("admin"));
        write_kubeconfig(&kubeconfig, &both.url, Path::new("authorities.pem"), user);
        watched.push(Watched::new(&bed, Plan::tls().upstream(&kubeconfig).start(&bed).await).await);
    }
    let is_known_as = async |watched: &[Watched], user: &str, token: &str| {
        let (first, second) = (watched[0].who().await, watched[1].who().await);
        let name = json!([format!("JTI={token}")]);
        first["username"] == user && second["extra"]["authentication.kubernetes.io/credential-id"] == name
    };
    assert!(is_known_as(&watched, "rotated-1", "first").await);
    for watched in &mut watched {
        watched.goes_on(&direct, "before").await;
    }
    // The new authority is trusted before its certificate is used.
    let next = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    fs::write(&new, next.cert.pem()).expect("a file");
    files.write("authorities.pem", &(old + &next.cert.pem()));
    files.certify(&bed, "rotated-2");
    files.token(&bed, &account, "second");
    let since = tokio::time::Instant::now();
    eventually("new credentials are used", async || is_known_as(&watched, "rotated-2", "second").await.then_some(()))
        .await;
    let used = since.elapsed();
    write_bundle(&sibling.dir.join(Sibling::KEY), &[next.signing_key.serialize_pem()]);
    write_bundle(&sibling.dir.join(Sibling::CERTIFICATE), &[next.cert.pem()]);
    shows(&sibling, &new).await;
    for watched in &mut watched {
        watched.goes_on(&direct, "rotated").await;
    }
    balancer.cut();
    for watched in &mut watched {
        watched.goes_on(&direct, "resumed").await;
        watched.goes_on(&direct, "last").await;
        assert_eq!(watched.proxy.feed_requests("relist").await, 0, "streams go on where they were");
        watched.proxy.assert_sound();
    }
    log_line(&format!(
        "new credentials were used after {:.1} s; 2 watches continued, also on new connections",
        used.as_secs_f64()
    ));
}
