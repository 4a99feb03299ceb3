//! `zpool initialize` and `zpool trim`, and how far they are.

use super::Engine;
use super::errors::{Answer, of_vdev};
use zilla_control::ErrorCode;
use zilla_control::types::{ActivityState, LeafProgress, Upkeep, UpkeepCommand, VdevUpkeep, VdevUpkeepReply};
use zilla_core::vdev::{Leaf, UpkeepKind, UpkeepState};

pub(super) fn kind_of(kind: Upkeep) -> UpkeepKind {
    match kind {
        Upkeep::Initialize => UpkeepKind::Initialize,
        Upkeep::Trim => UpkeepKind::Trim,
    }
}

impl Engine {
    /// Does it for each device that takes it, and says which do not.
    pub(super) async fn upkeep(&self, r: VdevUpkeep) -> Answer<VdevUpkeepReply> {
        let pool = self.changeable(&r.name)?;
        let kind = kind_of(r.kind);
        let mut reply = VdevUpkeepReply::default();
        for guid in r.guids {
            let done = match r.command {
                // Nothing here can promise that what was discarded is not readable any more.
                UpkeepCommand::Start if r.secure => {
                    reply.refused.push((guid, ErrorCode::TrimNotSup.into()));
                    continue;
                }
                UpkeepCommand::Start => pool.spa.start_upkeep(guid, kind, r.rate).await,
                UpkeepCommand::Cancel => pool.spa.stop_upkeep(guid, kind, UpkeepState::Canceled).await,
                UpkeepCommand::Suspend => pool.spa.stop_upkeep(guid, kind, UpkeepState::Suspended).await,
                UpkeepCommand::Uninitialize => pool.spa.uninitialize(guid).await,
            };
            if let Err(e) = done {
                reply.refused.push((guid, of_vdev(e)));
            }
        }
        Ok(reply)
    }
}

/// How far a leaf is.
pub(super) fn progress(leaf: &Leaf, kind: UpkeepKind) -> LeafProgress {
    let stat = leaf.upkeep(kind).stat();
    LeafProgress {
        state: match stat.state {
            UpkeepState::None => ActivityState::None,
            UpkeepState::Active => ActivityState::Active,
            UpkeepState::Canceled => ActivityState::Canceled,
            UpkeepState::Suspended => ActivityState::Suspended,
            UpkeepState::Complete => ActivityState::Complete,
        },
        done: stat.done,
        estimate: stat.estimate,
        action_time: stat.action_time,
        errors: stat.errors,
        unsupported: kind == UpkeepKind::Trim && !leaf.can_trim(),
    }
}
