//! The route table, row by row.
