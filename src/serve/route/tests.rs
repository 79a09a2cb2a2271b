//! The route table, row by row. Sources are the rows of semantics.md §1–§3 and §5; messages are the apiserver's.

mod fixture;
mod forms;
mod forwards;
mod reads;
mod refusals;
mod watches;
