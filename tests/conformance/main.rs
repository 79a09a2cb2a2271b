//! What clients see through the proxy, compared with a real kube-apiserver and etcd.
//!
//! Every test runs the shipped binary as a process of its own in front of `kube-testbed` (tests/kube/README.md), and
//! compares with the same thing done without the proxy. Figures go to stderr, also for tests that pass. Without a test
//! bed every test says so and passes; with CI=true it fails.

mod bed;
#[path = "../direct/direct/blocks.rs"]
mod blocks;
mod ledger;
#[path = "../direct/direct/records.rs"]
mod records;

mod audit;
mod authorization;
mod clients;
mod cluster;
mod compression;
mod corpus;
mod custom;
mod custom_life;
mod deploy;
mod differential;
mod elections;
mod estimate;
mod expired;
mod failover;
mod fanout;
mod faults;
mod floods;
mod freshness;
mod gaps;
mod gets;
mod guides;
mod hostile;
mod imperfect;
mod impersonation;
mod informers;
mod install;
mod kubectl;
mod kubelet;
mod lists;
mod neighbouring_names;
mod neighbours;
mod node_scope;
mod own_rights;
mod pods;
mod proxy_restart;
mod readable;
mod representations;
mod representations_hard;
mod rest;
mod restarts;
mod revocation;
mod rewind;
mod rows;
mod scrapes;
mod self_checks;
mod siege;
mod tables;
mod transactions;
mod tree;
mod trial;
mod upgrade;
mod verify;
mod watches;
mod websocket;
