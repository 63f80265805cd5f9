//! The controller of a site with several instances: how many there are, and what each of them is told.

mod cgroup;
pub mod cpus;
pub mod load;
pub mod memory;
pub mod scaler;
pub mod scaling;
#[cfg(test)]
mod simulation;
