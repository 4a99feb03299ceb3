//! zilla's control API: what `zpool`, `zfs`, a script or a web page ask of `zillad`, and how.
//!
//! One daemon owns the imported pools; everything else is a client. A client posts a JSON
//! [`Envelope`] to `/v1/<operation>` on a Unix socket and gets a JSON [`Outcome`]. [`types`] has
//! the requests and replies, [`operations`] the list that ties them together and the [`Backend`]
//! trait the daemon implements, [`props`] the tables of pool and dataset properties both sides
//! judge and print by, [`status`] what is wrong with a pool in one word, [`paths`] where the
//! daemon's files lie, [`client`] a blocking client small enough for a command that must start in a
//! few milliseconds, and `server` (a feature) the other end.
//!
//! What it keeps true: nothing that comes through the socket is trusted, neither by the server
//! (size, depth, time and peer are checked before a backend sees a request) nor by the client (a
//! reply is bounded too). `GET` on the socket gives what is not an operation: metrics, and what the
//! API is ([`openapi`]). Absent on purpose: a network listener, and any knowledge of how pools
//! work.

pub mod client;
pub mod error;
pub mod handover;
pub mod key_source;
pub mod openapi;
pub mod operations;
pub mod owners;
pub mod paths;
pub mod presence;
pub mod props;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod share;
pub mod status;
pub mod types;
#[cfg(feature = "server")]
pub mod wary;
#[cfg(feature = "server")]
pub mod whose;
#[cfg(feature = "server")]
pub mod write_timeout;
pub mod zedlets;

pub use client::{Client, ClientError};
pub use error::{ApiError, ErrorCode};
pub use operations::{
    Asked, Backend, Caller, Envelope, GUEST_REPLY_LIMIT, LOOKING, OPERATIONS, Operation, Outcome, PROTOCOL,
    Page, dispatch, reply_too_long,
};
pub use paths::{Folder, StateDir};
