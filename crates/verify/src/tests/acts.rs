//! The actions and requests of the model's clients.

use proptest::prelude::*;

use super::super::record::RequestServerRole;

pub(super) const KEYS: [&str; 6] = ["a-b/x", "a/x", "a/y", "a/z", "b/x", "b/y"];
/// An action.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// One object is written, or deleted if it exists.
    Write {
        key: usize,
        label: u8,
        delete: bool,
    },
    /// Two objects are written at one version.
    Transaction {
        keys: [usize; 2],
        label: u8,
    },
    /// The cache catches up, and watches get the changes.
    CatchUp,
    /// The cache sends a bookmark to one watch.
    Bookmark {
        watch: usize,
    },
    List {
        plan: Plan,
        of: Scope,
        limit: usize,
    },
    Get {
        plan: Plan,
        key: usize,
    },
    Watch {
        plan: Plan,
        of: Scope,
        bookmarks: bool,
        server: RequestServerRole,
    },
    /// A stream breaks, perhaps amid two changes of one version, and is resumed.
    Resume {
        watch: usize,
        amid: bool,
    },
    /// A watch resumes from the last list.
    Follow {
        bookmarks: bool,
    },
    Compact {
        back: u64,
    },
    Fault,
}

/// The requested version.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    Consistent,
    Any,
    /// An offset from the newest version; negative for an older one.
    AtLeast(i64),
    Exact(i64),
    /// A watch after a version.
    Behind(i64),
    /// The request is a watch that begins with the next event.
    Next,
}

/// The selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scope {
    pub(super) namespace: &'static str,
    /// The selector's text, and the labels that it matches.
    pub(super) selector: (&'static str, &'static [u8]),
}

impl Scope {
    pub(super) fn matches(self, key: &str, label: u8) -> bool {
        let namespace = key.split('/').next().unwrap();
        (self.namespace.is_empty() || self.namespace == namespace) && self.selector.1.contains(&label)
    }

    pub(super) fn path(self) -> String {
        match self.namespace {
            "" => "/api/v1/pods".to_owned(),
            namespace => format!("/api/v1/namespaces/{namespace}/pods"),
        }
    }
}

pub(super) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let of = || {
        let selectors: [(&str, &[u8]); 4] =
            [("", &[0, 1, 2]), ("", &[0, 1, 2]), ("labelSelector=l%3D1&", &[1]), ("labelSelector=l%21%3D1&", &[0, 2])];
        let namespaces = prop::sample::select(vec!["", "", "a", "b"]);
        (namespaces, prop::sample::select(selectors.to_vec()))
            .prop_map(|(namespace, selector)| Scope { namespace, selector })
    };
    let read = || {
        prop_oneof![
            Just(Plan::Consistent),
            Just(Plan::Any),
            (-6_i64..3).prop_map(Plan::AtLeast),
            (-6_i64..3).prop_map(Plan::Exact)
        ]
    };
    let watch = prop_oneof![
        Just(Plan::Consistent),
        Just(Plan::Any),
        (-6_i64..3).prop_map(Plan::AtLeast),
        (-6_i64..4).prop_map(Plan::Behind),
        Just(Plan::Next)
    ];
    let server = prop_oneof![4 => Just(RequestServerRole::Subject), 1 => Just(RequestServerRole::Direct)];
    let act = prop_oneof![
        12 => (0..KEYS.len(), 0..3_u8, prop::bool::weighted(0.3))
            .prop_map(|(key, label, delete)| Act::Write { key, label, delete }),
        2 => (0..KEYS.len(), 1..KEYS.len(), 0..3_u8)
            .prop_map(|(one, step, label)| Act::Transaction { keys: [one, (one + step) % KEYS.len()], label }),
        5 => Just(Act::CatchUp),
        3 => any::<usize>().prop_map(|watch| Act::Bookmark { watch }),
        3 => (read(), of(), 0..4_usize).prop_map(|(plan, of, limit)| Act::List { plan, of, limit }),
        2 => (read(), 0..KEYS.len()).prop_map(|(plan, key)| Act::Get { plan, key }),
        4 => (watch, of(), any::<bool>(), server)
            .prop_map(|(plan, of, bookmarks, server)| Act::Watch { plan, of, bookmarks, server }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(watch, amid)| Act::Resume { watch, amid }),
        2 => any::<bool>().prop_map(|bookmarks| Act::Follow { bookmarks }),
        1 => (0..5_u64).prop_map(|back| Act::Compact { back }),
        1 => Just(Act::Fault),
    ];
    prop::collection::vec(act, 1..60)
}
