/// The sort column of `/debug/watches`. An unknown name selects `Behind`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SortBy {
    #[default]
    Behind,
    Since,
    Sent,
    Open,
    Agent,
    User,
    Resource,
}

/// The sort key of a watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchRank {
    Number(u64, u64),
    Text(String),
}

impl SortBy {
    pub(super) fn of(name: &str) -> Self {
        match name {
            "since" => Self::Since,
            "sent" => Self::Sent,
            "open" => Self::Open,
            "agent" => Self::Agent,
            "user" => Self::User,
            "resource" => Self::Resource,
            _ => Self::Behind,
        }
    }
}
