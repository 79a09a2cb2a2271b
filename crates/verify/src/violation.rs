//! The findings of a judge.

use super::guarantee::ApiserverGuarantee;
use super::operation::RecordedOperation;
use super::record::OperationId;

/// One violation of a guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeViolation {
    pub promise: ApiserverGuarantee,
    /// The operation that shows the violation.
    pub op: Option<OperationId>,
    pub expected: String,
    pub got: String,
    /// The records that show the violation, in their order.
    pub lines: Vec<u32>,
}

/// The verdict on one guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeVerdict {
    pub promise: ApiserverGuarantee,
    /// The number of times that the guarantee was judged. With 0, it was neither kept nor broken.
    pub instances: u64,
    /// The number of times that the guarantee was broken.
    pub broken: u64,
    /// The first violations, in the order of their records.
    pub violations: Vec<GuaranteeViolation>,
}

/// The number of violations of a guarantee that are kept; further ones are only counted.
const VIOLATIONS_MAX: usize = 100;

impl GuaranteeVerdict {
    pub(super) fn new(promise: ApiserverGuarantee) -> Self {
        Self { promise, instances: 0, broken: 0, violations: Vec::new() }
    }

    /// Adds a violation, or only counts it beyond the maximum.
    pub(super) fn violation(
        &mut self,
        op: &RecordedOperation,
        lines: &[u32],
        describe: impl FnOnce() -> (String, String),
    ) {
        self.broken += 1;
        if self.has_room() {
            let mut lines: Vec<_> = [op.line].iter().chain(lines).copied().filter(|line| *line > 0).collect();
            lines.sort_unstable();
            lines.dedup();
            let (expected, got) = describe();
            self.violations.push(GuaranteeViolation { promise: self.promise, op: Some(op.op), expected, got, lines });
        }
    }

    /// Adds a violation that no client operation shows.
    pub(super) fn violation_of_none(&mut self, lines: Vec<u32>, expected: String, got: String) {
        self.broken += 1;
        if self.has_room() {
            self.violations.push(GuaranteeViolation { promise: self.promise, op: None, expected, got, lines });
        }
    }

    /// Whether a further violation would be kept.
    pub(super) fn has_room(&self) -> bool {
        self.violations.len() < VIOLATIONS_MAX
    }

    /// Sorts the violations by their last record, earliest first.
    pub(super) fn sorted(mut self) -> Self {
        self.violations.sort_by_key(|violation| violation.lines.last().copied());
        self
    }
}
