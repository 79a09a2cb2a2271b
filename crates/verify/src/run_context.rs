use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::frame_decode_cache::FrameDecodeCache;
use super::links::SharedConnections;
use super::object_set::ObjectSet;
use super::record::{ClientTransport, RecordedEncoding, RequestServerRole};
use super::recorder::HistoryRecorder;
use base::BackgroundTasks;
use probe::TargetServer;

/// The shared state of clients, writers and sources of truth.
pub(super) struct VerifyRunContext {
    pub(super) recorder: HistoryRecorder,
    pub(super) world: ObjectSet,
    /// The judged servers: the first one, then the additional ones.
    pub(super) subjects: Vec<TargetServer>,
    /// Whether all clients are informers that never relist on their own.
    pub(super) informers: bool,
    pub(super) links: SharedConnections,
    pub(super) frames: FrameDecodeCache,
    /// The apiserver behind the judged servers, if it is known.
    pub(super) direct: Option<TargetServer>,
    pub(super) seed: u64,
    pub(super) encodings: Vec<RecordedEncoding>,
    pub(super) transports: Vec<ClientTransport>,
    /// The factor by which pauses between requests and the duration of watches are lengthened.
    pub(super) pace: u32,
    /// A signal that is cancelled when clients must end.
    pub(super) leave: CancellationToken,
    pub(super) tasks: BackgroundTasks,
    pub(super) notes: RunNotes,
}

/// Problems that are not violations, for people: each text once, with its count.
#[derive(Default)]
pub(super) struct RunNotes(Mutex<Vec<(String, u64)>>);

const NOTES_MAX: usize = 30;

impl RunNotes {
    pub(super) fn add(&self, note: impl Into<String>) {
        let (note, mut notes) = (note.into(), self.0.lock());
        if let Some((_, times)) = notes.iter_mut().find(|(known, _)| *known == note) {
            *times += 1;
        } else if notes.len() < NOTES_MAX {
            notes.push((note, 1));
        }
    }

    pub(super) fn take(&self) -> Vec<String> {
        let notes = std::mem::take(&mut *self.0.lock());
        let with_count = |(note, times)| if times == 1 { note } else { format!("{note} ({times} times)") };
        notes.into_iter().map(with_count).collect()
    }
}

/// The users of random numbers. Each has its own generator, so that its draws do not depend on the timing of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RngStream {
    Client(u32),
    Writer(u32),
    Faults,
}

impl VerifyRunContext {
    /// Returns the first judged server.
    pub(super) fn subject(&self) -> &TargetServer {
        &self.subjects[0]
    }

    pub(super) fn target(&self, server: RequestServerRole) -> &TargetServer {
        match server {
            RequestServerRole::Subject => self.subject(),
            RequestServerRole::Also(number) => &self.subjects[1 + usize::from(number)],
            RequestServerRole::Direct => self.direct.as_ref().unwrap_or_else(|| self.subject()),
        }
    }

    /// Returns the servers that clients may use.
    pub(super) fn servers(&self) -> impl Iterator<Item = RequestServerRole> + use<> {
        let also = u8::try_from(self.subjects.len().saturating_sub(1)).unwrap_or(u8::MAX);
        std::iter::once(RequestServerRole::Subject).chain((0..also).map(RequestServerRole::Also))
    }

    pub(super) fn rng(&self, who: RngStream) -> fastrand::Rng {
        rng(self.seed, who)
    }

    /// Pauses for a time scaled by the run's pace, or until the end; returns `false` if clients must leave.
    pub(super) async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.leave.cancelled() => false,
            () = sleep(time * self.pace) => true,
        }
    }
}

fn rng(seed: u64, who: RngStream) -> fastrand::Rng {
    let (kind, index) = match who {
        RngStream::Client(n) => (1, n),
        RngStream::Writer(n) => (2, n),
        RngStream::Faults => (3, 0),
    };
    fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (kind << 32) ^ u64::from(index))
}

/// Draws a duration between two bounds.
pub(super) fn between(rng: &mut fastrand::Rng, least: Duration, most: Duration) -> Duration {
    least + most.saturating_sub(least).mul_f64(rng.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_participant_has_its_own_reproducible_rng() {
        let draws = |seed, who| rng(seed, who).u64(..);
        let who =
            [RngStream::Client(0), RngStream::Client(1), RngStream::Writer(0), RngStream::Writer(1), RngStream::Faults];
        let drawn: std::collections::HashSet<_> =
            [1, 2].into_iter().flat_map(|seed| who.map(|who| draws(seed, who))).collect();
        assert_eq!(drawn.len(), 2 * who.len());
        assert_eq!(draws(1, RngStream::Client(7)), draws(1, RngStream::Client(7)));
    }

    #[test]
    fn repeated_notes_are_merged_with_a_count() {
        let notes = RunNotes::default();
        for note in ["a", "b", "a"] {
            notes.add(note);
        }
        (0..1000).for_each(|n| notes.add(format!("many {n}")));
        let taken = notes.take();
        assert_eq!((taken[0].as_str(), taken[1].as_str(), taken.len()), ("a (2 times)", "b", NOTES_MAX));
    }
}
