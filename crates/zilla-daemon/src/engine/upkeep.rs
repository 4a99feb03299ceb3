//! `zpool initialize` and `zpool trim`.

use super::errors::{Answer, of_vdev};
use super::{Engine, Serves};
use zilla::devices::{UpkeepKind, UpkeepState};
use zilla_control::types::{Upkeep, UpkeepCommand, VdevUpkeep, VdevUpkeepReply};
use zilla_control::{Caller, ErrorCode};

pub(super) fn kind_of(kind: Upkeep) -> UpkeepKind {
    match kind {
        Upkeep::Initialize => UpkeepKind::Initialize,
        Upkeep::Trim => UpkeepKind::Trim,
    }
}

impl Serves<VdevUpkeep> for Engine {
    /// Does it for each device that takes it, and says which do not.
    async fn serve(&self, _: &Caller, r: VdevUpkeep) -> Answer<VdevUpkeepReply> {
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
                UpkeepCommand::Start => pool.zilla.start_upkeep(guid, kind, r.rate).await,
                UpkeepCommand::Cancel => pool.zilla.stop_upkeep(guid, kind, UpkeepState::Canceled).await,
                UpkeepCommand::Suspend => pool.zilla.stop_upkeep(guid, kind, UpkeepState::Suspended).await,
                UpkeepCommand::Uninitialize => pool.zilla.uninitialize(guid).await,
            };
            if let Err(e) = done {
                reply.refused.push((guid, of_vdev(e)));
            }
        }
        Ok(reply)
    }
}
