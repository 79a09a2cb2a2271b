/// The topic of a review about a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReviewTopic {
    Token,
    Access,
}

impl ReviewTopic {
    /// The label in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Access => "access",
        }
    }

    /// The API group of its reviews.
    pub(super) fn group(self) -> &'static str {
        match self {
            Self::Token => "authentication.k8s.io",
            Self::Access => "authorization.k8s.io",
        }
    }

    /// The resource of its reviews.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Token => "tokenreviews",
            Self::Access => "subjectaccessreviews",
        }
    }

    /// The operation that fails without an answer, for messages.
    pub(super) fn refusal(self) -> &'static str {
        match self {
            Self::Token => "cannot authenticate",
            Self::Access => "cannot authorize",
        }
    }
}
