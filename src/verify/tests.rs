//! Histories of whole runs.
