//! What people and monitors look at by HTTP: metrics, and a page in the browser.
//!
//! [`metrics`] turns what the daemon answers anyway into Prometheus' text, which the daemon's own
//! socket serves at `/metrics`. [`server`] is a door of its own, for browsers, which cannot reach a
//! Unix socket: closed unless it is asked for, on the machine itself unless it has a certificate,
//! and for who has a token ([`access`]). The page's files are part of the program ([`assets`]);
//! they ask nobody else for anything. Events are sent as they come to whoever listens ([`sse`]).
//! What the page shows and does are operations of the control API, as the commands' are.
//!
//! What it keeps true: nothing that comes in is trusted or unbounded; who has a token may do what
//! its role says and nothing else; no other web site that a person visits can use his token, since
//! it is not a cookie, nor get at the answers, since neither its name (`Host`) nor its origin is
//! ours.

pub mod access;
mod assets;
pub mod metrics;
pub mod server;
mod sse;

pub use access::Tokens;
