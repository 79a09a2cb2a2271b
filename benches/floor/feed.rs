use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use kube_client::Config;
use kube_client::client::{Body, Client};
use kube_client::config::Kubeconfig;
use parking_lot::{Mutex, RwLock};

use super::Failure;

/// The last frames of one watch, shared by all readers.
pub(super) struct Feed {
    frames: RwLock<Frames>,
    /// Number of frames so far, and the version of the last one.
    end: AtomicU64,
    version: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

struct Frames {
    /// Index of the first frame in the buffer.
    first: u64,
    held: VecDeque<Bytes>,
}

/// A reader's position.
pub(super) struct Place {
    feed: Arc<Feed>,
    next: u64,
    /// The end of the feed at the last registration of the waker.
    waits_at: u64,
}

/// A reader that is further behind has lost its position.
const FRAMES_MAX: usize = 16 << 10;
/// Frames that are joined for a reader that is behind, as in the proxy, in bytes.
const ROOM_BYTES: usize = 32 << 10;

impl Feed {
    /// Starts a watch at the current version.
    pub(super) async fn follow(kubeconfig: &Path, path: &str) -> Result<Arc<Self>, Failure> {
        let client = Client::try_from(Config::try_from(Kubeconfig::read_from(kubeconfig)?)?)?;
        let feed = Arc::new(Self {
            frames: RwLock::new(Frames { first: 0, held: VecDeque::new() }),
            end: AtomicU64::new(0),
            version: AtomicU64::new(0),
            waiting: Mutex::default(),
        });
        let mut watch = feed.watch(&client, path).await?;
        tokio::spawn({
            let (feed, path) = (feed.clone(), path.to_owned());
            async move {
                // An apiserver under load ends watches that do not keep up, usually before this server is measured. The
                // measuring clients count the events that they miss.
                while feed.fill(watch).await? > 0 {
                    eprintln!("the watch is over, and begins anew");
                    watch = feed.watch(&client, &path).await?;
                }
                Err::<(), Failure>("a watch without an event has ended".into())
            }
            .map(|broken| {
                eprintln!("the watch broke: {broken:?}");
                // Otherwise readers would wait for ever, and be measured.
                std::process::exit(1);
            })
        });
        Ok(feed)
    }

    /// Opens a watch at the current version.
    async fn watch(&self, client: &Client, path: &str) -> Result<Body, Failure> {
        let head: serde_json::Value = client.request(request(format!("{path}?limit=1"), Vec::new())?).await?;
        let version = head["metadata"]["resourceVersion"].as_str().ok_or("a LIST without a version")?.to_owned();
        let watch = format!("{path}?watch=true&timeoutSeconds=86400&resourceVersion={version}");
        let watch = client.send(request(watch, Body::empty())?).await?;
        if !watch.status().is_success() {
            return Err(format!("the watch was refused: {}", watch.status()).into());
        }
        self.version.store(version.parse()?, Ordering::Relaxed);
        Ok(watch.into_body())
    }

    /// Reads events until the watch ends; returns their number.
    async fn fill(&self, mut body: Body) -> Result<usize, Failure> {
        let (mut rest, mut count) = (BytesMut::new(), 0);
        // A broken watch has ended too.
        while let Some(Ok(frame)) = body.frame().await {
            rest.extend_from_slice(frame.into_data().unwrap_or_default().chunk());
            while let Some(end) = memchr::memchr(b'\n', &rest) {
                let frame = rest.split_to(end + 1);
                if frame.starts_with(br#"{"type":"ERROR""#) {
                    return Ok(count);
                }
                self.put(&frame);
                count += 1;
            }
        }
        Ok(count)
    }

    fn put(&self, frame: &[u8]) {
        const KEY: &[u8] = b"\"resourceVersion\":\"";
        if let Some(at) = memchr::memmem::find(frame, KEY) {
            let digits = frame[at + KEY.len()..].iter().take_while(|byte| byte.is_ascii_digit());
            let version = digits.fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0'));
            self.version.store(version, Ordering::Relaxed);
        }
        let mut frames = self.frames.write();
        if frames.held.len() == FRAMES_MAX {
            frames.held.pop_front();
            frames.first += 1;
        }
        // A copy, because the read buffer may be much larger.
        frames.held.push_back(Bytes::copy_from_slice(frame));
        drop(frames);
        self.end.fetch_add(1, Ordering::SeqCst);
        std::mem::take(&mut *self.waiting.lock()).into_iter().for_each(Waker::wake);
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}

fn request<B>(uri: String, body: B) -> Result<http::Request<B>, http::Error> {
    http::Request::get(uri).body(body)
}

impl Place {
    /// The end of the feed.
    pub(super) fn behind(feed: &Arc<Feed>) -> Self {
        Self { feed: feed.clone(), next: feed.end(), waits_at: u64::MAX }
    }

    pub(super) fn advance_to(&mut self, next: u64) {
        self.next = next;
    }

    /// The next frames, joined; `None` if the position is lost. A single frame is shared with every other reader.
    pub(super) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        if self.poll_news(cx).is_pending() { Poll::Pending } else { self.take() }
    }

    /// The same without registering a waker.
    pub(super) fn take(&mut self) -> Poll<Option<Bytes>> {
        if self.feed.end() <= self.next {
            return Poll::Pending;
        }
        let frames = self.feed.frames.read();
        let Some(at) = self.next.checked_sub(frames.first) else { return Poll::Ready(None) };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let news = frames.held.range(at..).take_while(|frame| {
            let is_room = bytes < ROOM_BYTES;
            bytes += frame.len();
            is_room
        });
        let news: Vec<_> = news.cloned().collect();
        drop(frames);
        self.next += news.len() as u64;
        Poll::Ready(Some(match &news[..] {
            [one] => one.clone(),
            several => several.concat().into(),
        }))
    }

    /// Ready if there are frames after this position. Otherwise the next frame wakes the task.
    pub(super) fn poll_news(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.feed.end() > self.next {
            return Poll::Ready(());
        }
        if self.waits_at != self.next {
            self.waits_at = self.next;
            self.feed.waiting.lock().push(cx.waker().clone());
        }
        // A frame may have arrived before the registration.
        if self.feed.end() > self.next { Poll::Ready(()) } else { Poll::Pending }
    }
}
