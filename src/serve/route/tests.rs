//! The route table, row by row. Its sources are docs/dev/rules/requests.md and docs/dev/rules/reads.md; the messages
//! are the apiserver's.

mod encodings;
mod fixture;
mod forwards;
mod reads;
mod refusals;
mod watches;
