//! The route table, row by row. Its sources are docs/dev/rules/requests.md and docs/dev/rules/reads.md.

mod encodings;
mod fixture;
mod forwards;
mod invalid;
mod reads;
mod watches;
