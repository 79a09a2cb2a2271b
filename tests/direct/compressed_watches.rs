//! Watches for clients that accept gzip.

use std::io::Read as _;

use flate2::{Decompress, FlushDecompress};
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::serve::WatchCompression;

use crate::direct::{
    self, CONFIGMAPS, Call, Client, PODS, Protocol, configmap, ends_initial_events, eventually, within,
};

const STATE: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
const HEADER_BYTES: usize = 10;
const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A watch that is decompressed as it is received.
pub struct GzipWatch {
    body: Incoming,
    sent: Vec<u8>,
    inflate: Decompress,
    pub text: Vec<u8>,
}

impl GzipWatch {
    /// Opens a watch; `None` if the response is not compressed.
    async fn open(client: &Client, path: &str) -> Option<Self> {
        Self::of(client.request(Method::GET, path)).await
    }

    /// Opens the watch of a request; `None` if the response is not compressed.
    pub async fn of(call: Call) -> Option<Self> {
        let call = call.header("accept-encoding", "br, gzip");
        let response = within("a watch opens", call.open()).await.expect("a response");
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        let named = (header("content-encoding"), header("vary"));
        let gzip = (Some("gzip".to_owned()), Some("Accept-Encoding".to_owned()));
        assert!(named == gzip || named == (None, None), "{named:?}");
        let (sent, inflate, text) = (Vec::new(), Decompress::new(false), Vec::new());
        (named == gzip).then(|| Self { body: response.into_body(), sent, inflate, text })
    }

    /// Reads more; `false` at the end.
    async fn read(&mut self) -> bool {
        let Some(frame) = within("more of the watch", self.body.frame()).await else { return false };
        let data = frame.expect("the response goes on").into_data().expect("data");
        self.sent.extend_from_slice(&data);
        loop {
            let at = HEADER_BYTES + usize::try_from(self.inflate.total_in()).expect("short");
            let (rest, before) = (self.sent.get(at..).unwrap_or_default(), self.inflate.total_out());
            self.text.reserve(64 << 10);
            self.inflate.decompress_vec(rest, &mut self.text, FlushDecompress::Sync).expect("valid");
            if self.inflate.total_out() == before {
                return true;
            }
        }
    }

    /// Reads until `is_expected` is true of the text so far.
    pub async fn until(&mut self, what: &str, is_expected: impl Fn(&[u8]) -> bool) {
        while !is_expected(&self.text) {
            assert!(self.read().await, "the watch goes on until {what}");
        }
    }

    async fn until_text(&mut self, text: &str) {
        self.until(text, |read| read.windows(text.len()).any(|window| window == text.as_bytes())).await;
    }

    /// Reads until the bookmark that ends the initial events.
    pub async fn listed(&mut self) {
        self.until("the end of the initial events", ends_initial_events).await;
    }

    /// Reads to the end, which must complete the one member.
    async fn whole(mut self) -> String {
        while self.read().await {}
        let (mut text, mut decoder) = (String::new(), flate2::bufread::GzDecoder::new(&self.sent[..]));
        decoder.read_to_string(&mut text).expect("a complete member");
        assert!(decoder.into_inner().is_empty(), "nothing follows the member");
        assert!(text.as_bytes() == self.text, "everything could be read at once");
        text
    }
}

/// Returns the plain text of the initial events.
async fn plain(client: &Client, path: &str) -> String {
    client.request(Method::GET, path).initial_events().await.text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_lists_are_compressed_from_upstreams_release_on() {
    let pods = format!("{PODS}?{STATE}");
    let others = [
        (format!("{PODS}?watch=true&resourceVersion=0&allowWatchBookmarks=true"), true),
        (format!("{PODS}?watch=true&resourceVersion=0"), false),
        (format!("{PODS}?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"), false),
    ];
    for (minor, mode, state, all) in [
        (36, WatchCompression::WatchLists, false, false),
        (37, WatchCompression::WatchLists, true, false),
        (37, WatchCompression::Never, false, false),
        (36, WatchCompression::All, true, true),
    ] {
        let up = demo::upstream().pods(20).run().await;
        up.faults().say_releases(&[minor]);
        let app = direct::app(&up).with(|config| config.serve.compress_watches = mode).run().await;
        for protocol in BOTH {
            let client = app.over(protocol);
            let what = format!("1.{minor} {mode:?} {protocol:?}");
            assert_eq!(GzipWatch::open(&client, &pods).await.is_some(), state, "{what}");
            let call = client.request(Method::GET, &pods).header("accept-encoding", "gzip;q=1.0");
            let response = call.open().await.expect("a response");
            assert!(response.headers().get("content-encoding").is_none(), "{what}: the apiserver does not accept it");
            for (path, is_watch_list) in &others {
                let expected = all || state && *is_watch_list;
                assert_eq!(GzipWatch::open(&client, path).await.is_some(), expected, "{what} {path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_readable_before_the_next_and_a_drain_completes_the_member() {
    let up = demo::upstream().pods(300).run().await;
    up.faults().say_releases(&[37]);
    let mut app = direct::app(&up).run().await;
    let mut watches = Vec::new();
    // The label selector has frames of its own, and the other watches share theirs.
    for query in ["", "", "&labelSelector=app", "&fieldSelector=metadata.namespace%3Ddefault"] {
        for protocol in BOTH {
            let client = app.over(protocol);
            let mut watch = GzipWatch::open(&client, &format!("{PODS}?{STATE}{query}")).await.expect("compressed");
            watch.listed().await;
            let state = watch.text.clone();
            let expected = plain(&client, &format!("{PODS}?{STATE}{query}")).await;
            assert!(String::from_utf8(state).expect("text") == expected, "{query}");
            assert!(watch.sent.len() * 4 < watch.text.len(), "{} of {}", watch.sent.len(), watch.text.len());
            watches.push(watch);
        }
    }
    for event in 0..20 {
        let name = format!("live-{event}");
        up.put(
            "pods",
            serde_json::json!({
                "metadata": {"namespace": "default", "name": name, "labels": {"app": "x"}},
                "spec": {"nodeName": "node-1", "containers": []},
            }),
        );
        for watch in &mut watches {
            watch.until_text(&format!("\"name\":\"{name}\"")).await;
        }
    }
    app.begin_stop();
    for watch in watches {
        let text = watch.whole().await;
        let last = text.lines().last().expect("a line");
        serde_json::from_str::<serde_json::Value>(last).expect("a whole event");
        assert_eq!(text.lines().filter(|line| line.contains("\"live-")).count(), 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_arrive_whole_and_an_aborted_watch_disturbs_none() {
    const LARGE_BYTES: usize = 1 << 20;
    let up = demo::upstream().pods(1).run().await;
    up.faults().say_releases(&[37]);
    let text = |seed: u64| -> String {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.alphanumeric()).take(LARGE_BYTES).collect()
    };
    up.put("configmaps", configmap("default", "before", &text(1)));
    let app = direct::app(&up).run().await;
    let path = format!("{CONFIGMAPS}?{STATE}");
    let mut watches = Vec::new();
    for protocol in BOTH {
        let client = app.over(protocol);
        let mut aborted = GzipWatch::open(&client, &path).await.expect("compressed");
        assert!(aborted.read().await);
        drop(aborted);
        let mut watch = GzipWatch::open(&client, &path).await.expect("compressed");
        watch.listed().await;
        let expected = plain(&client, &path).await;
        assert!(watch.text == expected.as_bytes() && expected.len() > LARGE_BYTES);
        let value = text(2);
        up.put("configmaps", configmap("default", &format!("after-{protocol:?}").to_lowercase(), &value));
        watches.push(watch);
        for watch in &mut watches {
            watch.until_text(&value).await;
        }
    }
    let counted = |stage: &'static str| {
        let app = &app;
        async move {
            let metrics = app.admin("/metrics").await.text();
            let of = |line: &&str| line.starts_with("kube_fanout_watch_gzip_bytes_total{") && line.contains(stage);
            let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            metrics.lines().filter(of).filter_map(value).sum::<f64>()
        }
    };
    let is_counted = || async { counted("after").await > LARGE_BYTES as f64 };
    eventually("the bytes are counted", is_counted).await;
    assert!(counted("after").await < counted("before").await);
    // A gap that cannot be mended ends them.
    up.faults().down().await;
    app.until_feed("configmaps", "stale", |feed| feed["state"] == "stale").await;
    up.put("configmaps", configmap("default", "unseen", ""));
    up.faults().forget_history();
    up.faults().up().await;
    for watch in watches {
        let text = watch.whole().await;
        assert!(text.len() > 2 * LARGE_BYTES);
        assert!(text.lines().last().is_some_and(|last| last.contains(r#""code":410"#)));
    }
}
