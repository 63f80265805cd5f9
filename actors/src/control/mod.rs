//! Between the processes of a site: the link that a controller and its instances speak over, what they know of each
//! other's processes, and the files of an instance in the state directory. What they say is in
//! `playhouse_protocol::control`.

mod files;
pub mod link;
mod passed;
mod payload;
pub mod process;
pub mod record;

pub use files::{admin_path, control_path, is_instance_of, remove_files, remove_files_of};
pub use passed::{number, pair};
