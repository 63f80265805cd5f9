//! The controller of a site with several instances: how many there are, what each of them is told, and what all of
//! them have counted.

pub mod accounts;
mod cgroup;
pub mod cpus;
pub mod load;
pub mod memory;
pub mod scaler;
pub mod scaling;
#[cfg(test)]
mod simulation;
pub mod tickets;
