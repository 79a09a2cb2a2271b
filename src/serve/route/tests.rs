//! The route table, row by row. Sources are docs/rules/requests.md and docs/rules/reads.md; messages are the
//! apiserver's.

mod encodings;
mod fixture;
mod forwards;
mod reads;
mod refusals;
mod watches;
