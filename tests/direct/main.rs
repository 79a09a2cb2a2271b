//! The whole application, from outside: real sockets, the demo upstream behind it, clients in front of it (T3 direct).

mod direct;

mod admin;
mod audit;
mod callers;
mod canaries;
mod chaos;
mod clock;
mod cold;
mod command;
mod current;
mod cuts;
mod discovery;
mod doors;
mod fanout;
mod forward;
mod gaps;
mod hostile;
mod idle;
mod initial;
mod lists;
mod metrics;
mod node;
mod outage;
mod process;
mod readable;
mod refusals;
mod resume;
mod rotation;
mod selectors;
mod shutdown;
mod slow;
mod sockets;
mod syncing;
mod tables;
mod tls;
