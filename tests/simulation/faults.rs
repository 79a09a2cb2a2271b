//! The faults of a run: their kinds, times and durations.

use std::time::Duration;

use demo::{RequestKind, RunningDemoApiserver};

use crate::network::Network;

/// A fault of limited duration, drawn from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: Duration,
    /// Duration of the fault.
    pub lasts: Duration,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Upstream ends its watches, as an apiserver does with old ones.
    EndWatches,
    ResetWatches,
    /// Watches end inside a frame, with a clean end or with an error.
    TearFrame {
        bytes: usize,
    },
    BreakFrame {
        bytes: usize,
    },
    /// Watches receive nothing.
    HushWatches,
    /// The same after some more events, in the middle of activity.
    StallWatches {
        events: usize,
    },
    /// Connections to upstream break.
    CutUpstream,
    /// Connections to upstream transfer nothing.
    HoldUpstream,
    /// Connections to upstream are silently dead; new ones work. Plans draw this separately.
    DeadenUpstream,
    /// New connections to upstream are refused.
    RefuseUpstream,
    /// Upstream is down.
    Down,
    /// Upstream is down, and has lost its watch window when it is back.
    Restart,
    /// Upstream forgets its watch window, and cuts its watches.
    ForgetWindow,
    /// The storage is compacted, except for its last versions.
    Compact {
        kept: usize,
    },
    /// Requests are refused.
    RefuseRequests {
        of_watches: bool,
        code: u16,
        times: usize,
    },
    HoldLists,
    Bookmark,
    /// A bookmark at the version of the last event.
    BookmarkAtLast,
    CutClients,
    HoldClients,
    /// The application accepts no clients: connections are cut, and new ones are refused.
    RefuseClients,
    /// Objects are deleted, all at one version. This is not a fault.
    DeleteAtOnce {
        objects: usize,
    },
}

/// Names of all kinds.
pub const KINDS: [&str; 22] = [
    "EndWatches",
    "ResetWatches",
    "TearFrame",
    "BreakFrame",
    "HushWatches",
    "StallWatches",
    "CutUpstream",
    "HoldUpstream",
    "DeadenUpstream",
    "RefuseUpstream",
    "Down",
    "Restart",
    "ForgetWindow",
    "Compact",
    "RefuseRequests",
    "HoldLists",
    "Bookmark",
    "BookmarkAtLast",
    "CutClients",
    "HoldClients",
    "RefuseClients",
    "DeleteAtOnce",
];

/// The parts to which faults are applied.
pub struct Broken<'a> {
    pub up: &'a RunningDemoApiserver,
    pub plural: &'static str,
    pub to_upstream: &'a Network,
    pub to_application: &'a Network,
}

impl Fault {
    pub fn draw(rng: &mut fastrand::Rng, within: Duration) -> Self {
        let lasts = match rng.u8(..4) {
            0 => Duration::from_millis(rng.u64(..2_000)),
            1 | 2 => Duration::from_secs(rng.u64(1..=30)),
            _ => Duration::from_secs(rng.u64(30..=150)),
        };
        Self { at: within.mul_f64(rng.f64()), lasts, kind: FaultKind::draw(rng) }
    }
}

impl Fault {
    /// Connections that die, in one of eight seeds. They are detected within the fault's duration: by pings after 45 s,
    /// or by a stream that is silent for 90 s.
    pub fn dead_connections(rng: &mut fastrand::Rng, within: Duration) -> Option<Self> {
        let (at, lasts) = (within.mul_f64(rng.f64()), Duration::from_secs(100));
        (rng.u8(..8) == 0).then_some(Self { at, lasts, kind: FaultKind::DeadenUpstream })
    }
}

impl FaultKind {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        let (bytes, times, events) = (rng.usize(..200), rng.usize(1..=6), rng.usize(..4));
        let (code, of_watches) = ([429, 500, 503, 504][rng.usize(..4)], rng.bool());
        match rng.u8(..26) {
            0 => Self::EndWatches,
            1 => Self::ResetWatches,
            2 => Self::TearFrame { bytes },
            3 => Self::BreakFrame { bytes },
            4 | 5 => Self::HushWatches,
            6 => Self::StallWatches { events },
            7 => Self::CutUpstream,
            8 => Self::HoldUpstream,
            9 => Self::RefuseUpstream,
            10 => Self::Down,
            11 | 12 => Self::Restart,
            13 => Self::ForgetWindow,
            14 => Self::Compact { kept: bytes },
            15 => Self::RefuseRequests { of_watches, code, times },
            16 => Self::HoldLists,
            17 => Self::Bookmark,
            18 => Self::BookmarkAtLast,
            19 => Self::CutClients,
            20 => Self::HoldClients,
            21..=23 => Self::RefuseClients,
            _ => Self::DeleteAtOnce { objects: times.max(2) },
        }
    }

    /// Name of the kind, without its parameters.
    pub fn name(self) -> &'static str {
        let (long, is_end) = (format!("{self:?}"), |c: char| !c.is_alphanumeric());
        let name = long.split(is_end).next();
        KINDS.into_iter().find(|kind| Some(*kind) == name).expect("every kind is in the list")
    }

    /// Whether older history may be unavailable, so that a 410 is right. Upstream has forgotten it, or does not send it
    /// to a starting feed within the time that the feed waits for it (F9).
    pub fn hides_history(self) -> bool {
        match self {
            Self::Restart
            | Self::ForgetWindow
            | Self::Compact { .. }
            | Self::HushWatches
            | Self::StallWatches { .. }
            | Self::HoldUpstream
            | Self::DeadenUpstream
            | Self::RefuseUpstream
            | Self::Down
            | Self::RefuseRequests { .. }
            | Self::HoldLists => true,
            Self::EndWatches
            | Self::ResetWatches
            | Self::TearFrame { .. }
            | Self::BreakFrame { .. }
            | Self::CutUpstream
            | Self::Bookmark
            | Self::BookmarkAtLast
            | Self::DeleteAtOnce { .. }
            | Self::CutClients
            | Self::HoldClients
            | Self::RefuseClients => false,
        }
    }

    /// Whether events that upstream sends together may arrive far apart. A deletion of an Event counts as the last one
    /// of its version when nothing follows it (W17).
    pub fn parts_events(self) -> bool {
        matches!(self, Self::StallWatches { .. } | Self::HoldUpstream | Self::DeadenUpstream)
    }

    /// Whether this is a fault at all.
    pub fn breaks(self) -> bool {
        !matches!(self, Self::DeleteAtOnce { .. } | Self::Bookmark | Self::BookmarkAtLast)
    }

    pub async fn begin(self, on: &Broken<'_>) {
        let (faults, ours) = (on.up.faults(), on.up.faults().only(on.plural));
        match self {
            Self::EndWatches => ours.end_watches(),
            Self::ResetWatches => ours.reset_watches(),
            Self::TearFrame { bytes } => ours.tear_frame(bytes),
            Self::BreakFrame { bytes } => ours.break_frame(bytes),
            Self::HushWatches => faults.hush_watches(),
            Self::StallWatches { events } => faults.stall_watches(events),
            Self::CutUpstream => on.to_upstream.cut(),
            Self::HoldUpstream => on.to_upstream.change(|terms| terms.is_held = true),
            Self::DeadenUpstream => on.to_upstream.deaden(),
            Self::RefuseUpstream => {
                on.to_upstream.change(|terms| terms.refuses = true);
                on.to_upstream.cut();
            }
            Self::Down => faults.down().await,
            Self::Restart => {
                faults.down().await;
                faults.forget_window();
            }
            Self::ForgetWindow => {
                faults.forget_window();
                faults.reset_watches();
            }
            Self::Compact { kept } => {
                faults.compact(on.up.revision().saturating_sub(kept as u64));
                faults.reset_watches();
            }
            Self::RefuseRequests { of_watches, code, times } => {
                let kind = if of_watches { RequestKind::Watch } else { RequestKind::List };
                ours.answer(kind, times, code, (code == 429).then_some(1));
            }
            Self::HoldLists => faults.hold_lists(),
            Self::Bookmark => ours.bookmark(),
            Self::BookmarkAtLast => ours.bookmark_at_last_event(),
            Self::CutClients => on.to_application.cut(),
            Self::HoldClients => on.to_application.change(|terms| terms.is_held = true),
            Self::RefuseClients => {
                on.to_application.change(|terms| terms.refuses = true);
                on.to_application.cut();
            }
            Self::DeleteAtOnce { objects } => {
                let keys = on.up.keys(on.plural);
                let some = keys.iter().map(|(key, _)| key.as_str()).filter(|key| key.contains("verify-object"));
                on.up.delete_at_once(on.plural, some.take(objects));
            }
        }
    }

    /// Repairs the fault, if it can be repaired.
    pub async fn end(self, on: &Broken<'_>) {
        let faults = on.up.faults();
        match self {
            Self::HushWatches => faults.unhush_watches(),
            Self::StallWatches { .. } => faults.resume_watches(),
            Self::HoldUpstream => on.to_upstream.change(|terms| terms.is_held = false),
            Self::RefuseUpstream => on.to_upstream.change(|terms| terms.refuses = false),
            Self::Down | Self::Restart => faults.up().await,
            Self::HoldLists => faults.release_lists(),
            Self::HoldClients => on.to_application.change(|terms| terms.is_held = false),
            Self::RefuseClients => on.to_application.change(|terms| terms.refuses = false),
            Self::RefuseRequests { .. } => faults.answer_as_usual(),
            _ => {}
        }
    }
}

#[test]
fn random_faults_cover_every_kind() {
    let mut rng = fastrand::Rng::with_seed(1);
    let drawn: std::collections::BTreeSet<_> = (0..2_000).map(|_| FaultKind::draw(&mut rng).name()).collect();
    let apart = FaultKind::DeadenUpstream.name();
    assert_eq!(drawn, KINDS.into_iter().filter(|kind| *kind != apart).collect());
}
