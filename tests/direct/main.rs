//! Tests of the whole application from outside: it listens on real sockets, between clients and the demo upstream.

#[allow(dead_code, unused_imports, reason = "the tests of nightly.rs use the rest of it")]
mod direct;

mod admin;
mod audit;
mod callers;
mod canaries;
mod chains;
mod check;
mod chunks;
mod clock;
mod close_codes;
mod cold;
mod command;
mod compressed_watches;
mod configurations;
mod cost;
mod current;
mod cuts;
mod deploy;
mod discovery;
mod doors;
mod drain;
mod endpoints;
mod false_bookmarks;
mod fanout;
mod fleet;
mod fleeting;
mod forward;
mod foul_frames;
mod front_proxy;
mod gaps;
mod goaways;
mod greedy;
mod held;
mod hostile;
mod http2;
mod idle;
mod initial;
mod inspect;
mod install;
mod lists;
mod live;
mod local_decisions;
mod metrics;
mod missing_parts;
mod monitoring;
mod named_objects;
mod node;
mod onlookers;
mod outage;
mod oversize;
mod pages;
mod plugins;
mod policy;
mod ports;
#[allow(dead_code, reason = "the tests of nightly.rs use the rest of it")]
mod process;
mod readable;
mod ready;
mod refusals;
mod refused;
mod reload;
mod resume;
mod returners;
mod rewind;
mod rotation;
mod scrapes;
mod selectors;
mod self_checks;
mod shares;
#[allow(dead_code, reason = "the tests of nightly.rs use the rest of it")]
mod shut;
mod shutdown;
mod silent;
mod slow;
mod smuggling;
mod sockets;
mod storages;
mod stuck;
mod syncing;
mod tables;
mod terminal;
mod tiers;
mod tls;
mod transactions;
mod tree;
mod trial;
mod trust;
mod unread;
mod upgrade;
mod workloads;
mod zones;

/// How much later than promised something may happen, because the processors of a test machine do other work as well.
/// It ends a hang and decides nothing else. The nightly tier allows less.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(60);
