//! Between the processes of a site: the link that a controller and its instances speak over, what they know of each
//! other's processes, and the files of an instance in the state directory. What they say is in
//! `playhouse_protocol::control`.

mod conversation;
pub mod crash;
pub mod descriptors;
mod files;
mod host;
mod instance_link;
pub mod link;
mod passed;
mod payload;
pub mod process;
pub mod record;
mod sample;
mod strays;

pub use conversation::{BeginError, Conversation, Identity};
pub use files::{
    admin_path, board_path, control_path, is_instance_of, ledger_path, limits_path, quic_path, remove_files,
    remove_files_of,
};
pub use host::{HostError, run};
pub(crate) use instance_link::InstanceLink;
pub use passed::{number, pair};
pub(crate) use sample::resident_bytes;
pub(crate) use strays::instances_of;
