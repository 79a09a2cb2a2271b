use std::collections::VecDeque;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use super::frames::{Frame, Unframed};
use super::http::version_of;
use super::{normal, within};

/// An open watch.
pub struct Watch {
    body: Incoming,
    frames: Unframed,
    ended: Option<Ended>,
}

/// How a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The response body is complete.
    Clean,
    /// The connection or the stream broke.
    Broken,
}

/// A parsed event in JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub kind: String,
    pub object: Value,
    /// The line as received.
    pub line: String,
}

impl Watch {
    pub fn new(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let frames = Unframed::new(content_type);
        Self { body, frames, ended: None }
    }

    /// The next frame, or `None` at the end.
    pub async fn frame(&mut self) -> Option<Frame> {
        within("a frame of a watch", self.next_frame()).await
    }

    /// Reads until nothing has arrived for `wait`. Returns the number of frames, or `None` if the watch has ended.
    pub async fn catch_up(&mut self, wait: Duration) -> Option<usize> {
        let mut frames = 0;
        while let Ok(frame) = timeout(wait, self.next_frame()).await {
            frame?;
            frames += 1;
        }
        Some(frames)
    }

    async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.next() {
                return Some(frame);
            }
            if self.ended.is_some() {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.frames.push(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => self.ended = Some(Ended::Broken),
                None => {
                    assert!(self.frames.is_empty(), "a watch ended cleanly inside of an event");
                    self.ended = Some(Ended::Clean);
                }
            }
        }
    }

    /// The next event, or `None` at the end.
    pub async fn event(&mut self) -> Option<Event> {
        Some(Event::parse(&self.frame().await?))
    }

    /// The next event, normalized for comparison ([`normal::event`]). Skips bookmarks that only report progress,
    /// because two servers send them at different moments.
    pub async fn normalized_event(&mut self) -> String {
        loop {
            let frame = self.frame().await.expect("the watch continues");
            if let Some(event) = normal::event(&frame) {
                return event;
            }
        }
    }

    /// The next event that is not a bookmark.
    pub async fn change(&mut self) -> Event {
        loop {
            let event = self.event().await.expect("the watch continues");
            if event.kind != "BOOKMARK" {
                return event;
            }
        }
    }

    /// The initial events, including the bookmark that ends them.
    pub async fn initial(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await.expect("the watch continues");
            let last = event.ends_initial();
            events.push(event);
            if last {
                return events;
            }
        }
    }

    /// All events until the end, and how the watch ended.
    pub async fn rest(&mut self) -> (Vec<Event>, Ended) {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        (events, self.ended.expect("it ended"))
    }
}

impl Event {
    pub fn parse(frame: &Frame) -> Self {
        let Frame::Json(line) = frame else { panic!("not JSON: {frame:?}") };
        let line = String::from_utf8(line.to_vec()).expect("JSON is text");
        let mut event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let kind = event["type"].as_str().expect("a type").to_owned();
        Self { kind, object: event["object"].take(), line }
    }

    pub fn version(&self) -> u64 {
        version_of(&self.object)
    }

    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn ends_initial(&self) -> bool {
        self.object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
    }
}

/// The types and names of events, for comparison with the expected ones.
pub fn outline(events: &[Event]) -> VecDeque<String> {
    events.iter().map(|event| format!("{} {}", event.kind, event.name()).trim_end().to_owned()).collect()
}
